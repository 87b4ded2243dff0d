//! Parses options such as `performance=latency,threads=2,OPENVINO.NUM_STREAMS=2`. Options that roiflow defines for all devices have plain
//! names. Options of one engine have the prefix of that engine.

use std::path::PathBuf;
use std::time::Duration;

use super::config::MAX_BATCH_SIZE;
use super::{Config, Error, ErrorKind, Performance, Precision, Result};

/// The names of the options, and the values that each accepts.
const OPTIONS: [(&str, &str); 11] = [
    ("performance", "`throughput` or `latency`"),
    ("requests", "a number from 1 to 4096"),
    ("threads", "a number from 1 to 4096"),
    ("precision", "`f32`, `bf16` or `f16`"),
    ("cache-folder", "a folder"),
    ("profiling", "`true` or `false`"),
    ("exclusive-requests", "`true` or `false`"),
    ("callback-thread", "`true` or `false`"),
    ("batch-size", "a number from 1 to 1024"),
    ("batch-timeout", "milliseconds, 0 or more"),
    ("batch-independent", "`true` or `false`"),
];

impl Config {
    /// Sets the option with this name. The names are `performance`, `requests`, `threads`, `precision`, `cache-folder`, `profiling`,
    /// `exclusive-requests`, `callback-thread`, `batch-size`, `batch-timeout` (in milliseconds), `batch-independent`, and the options of an
    /// engine with its prefix, see [`Config::engine_options`].
    ///
    /// ```
    /// # use roiflow::runtime::{Config, Performance};
    /// let mut config = Config::default();
    /// config.set("performance", "latency")?;
    /// config.set("OPENVINO.NUM_STREAMS", "2")?;
    /// assert_eq!(config.performance, Performance::Latency);
    /// assert!(config.set("performance", "best").is_err());
    /// # Ok::<(), roiflow::runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns `Config` if the name is unknown or the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (name.trim(), value.trim());
        if name.contains('.') {
            self.engine_options.insert(name.to_owned(), value.to_owned());
            return Ok(());
        }
        let Some((_, expected)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            let names = OPTIONS.map(|(known, _)| known).join(", ");
            return Err(error(format!(
                "no option `{name}`: expected one of {names}, or an option of an engine, such as OPENVINO.NUM_STREAMS"
            )));
        };
        let is_set = match name {
            "performance" => {
                set(&mut self.performance, one_of(value, [("throughput", Performance::Throughput), ("latency", Performance::Latency)]))
            }
            "requests" => set(&mut self.n_requests, number(value, 4096).map(Some)),
            "threads" => set(&mut self.n_threads, number(value, 4096).map(Some)),
            "precision" => {
                set(&mut self.precision, one_of(value, [("f32", Precision::F32), ("bf16", Precision::Bf16), ("f16", Precision::F16)]))
            }
            "cache-folder" => set(&mut self.cache_folder, (!value.is_empty()).then(|| Some(PathBuf::from(value)))),
            "profiling" => set(&mut self.profiling, value.parse().ok()),
            "exclusive-requests" => set(&mut self.exclusive_requests, value.parse().ok()),
            "callback-thread" => set(&mut self.callback_thread, value.parse().ok()),
            "batch-independent" => set(&mut self.batch_independent, value.parse().ok()),
            "batch-size" => set(&mut self.batch_size, number(value, MAX_BATCH_SIZE)),
            _ => set(&mut self.batch_timeout, milliseconds(value)),
        };
        if is_set { Ok(()) } else { Err(error(format!("option `{name}`: expected {expected}, got `{value}`"))) }
    }

    /// Sets all options of a list such as `performance=latency,threads=2`. Empty parts are skipped.
    ///
    /// An option of an engine may have several addresses as its value: `remote.url=grpc://a:8001/m,grpc://b:8001/m`, or one address for each
    /// time the option is set. The addresses are joined with commas.
    ///
    /// # Errors
    /// Returns the errors of [`Config::set`]. Also returns `Config` if a part has no `=`. After an error, the options before the invalid
    /// part are set.
    pub fn set_all(&mut self, list: &str) -> Result<()> {
        // The engine option that was set last, and all engine options that this list has set to addresses.
        let (mut latest, mut with_addresses) = (None, Vec::new());
        for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = match (latest, part.split_once('=')) {
                (Some(name), _) if is_address(part) => (name, part),
                (_, Some((name, value))) => (name.trim(), value.trim()),
                (_, None) => return Err(error(format!("options: expected `name=value`, with commas between, got `{part}`"))),
            };
            match self.engine_options.get_mut(name) {
                Some(addresses) if with_addresses.contains(&name) && is_address(value) => {
                    addresses.push(',');
                    addresses.push_str(value);
                }
                _ => self.set(name, value)?,
            }
            if name.contains('.') && is_address(value) {
                with_addresses.push(name);
                latest = Some(name);
            } else {
                latest = None;
            }
        }
        Ok(())
    }

    /// Returns the options of this engine from [`Config::engine_options`], without the prefix.
    pub fn options_of(&self, engine: &str) -> impl Iterator<Item = (&str, &str)> {
        let own = self.engine_options.iter().filter_map(move |(name, value)| Some((name.split_once('.')?, value)));
        own.filter(move |((prefix, _), _)| *prefix == engine).map(|((_, name), value)| (name, value.as_str()))
    }

    /// Checks that the prefix of each engine option is one of `engines`.
    pub(super) fn check_engines<'a>(&self, engines: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let is_known = |name: &str| name.split_once('.').is_some_and(|(prefix, _)| engines.clone().any(|engine| engine == prefix));
        match self.engine_options.keys().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => {
                let engines = engines.collect::<Vec<_>>().join(", ");
                Err(error(format!("option `{name}`: expected the prefix of an engine with its own options, one of {engines}")))
            }
        }
    }
}

/// Whether a text begins with the scheme of an address, such as `grpc://`.
fn is_address(text: &str) -> bool {
    let is_scheme = |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|letter| letter.is_ascii_alphanumeric());
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

fn error(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

fn set<T>(option: &mut T, value: Option<T>) -> bool {
    value.map(|value| *option = value).is_some()
}

fn one_of<T, const N: usize>(text: &str, values: [(&str, T); N]) -> Option<T> {
    values.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value)
}

fn number(text: &str, max: usize) -> Option<usize> {
    text.parse().ok().filter(|number| (1..=max).contains(number))
}

fn milliseconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse::<f64>().ok()? / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_options_is_taken_by_name() {
        let mut config = Config::default();
        let list = " performance=latency, requests=3 ,threads=2,precision=bf16,cache-folder=/a b/c,profiling=true,,exclusive-requests=true,\
                    callback-thread=true,batch-size=4,batch-timeout=2.5,batch-independent=true,OPENVINO.NUM_STREAMS=2,ORT.session.x=a=b,";
        config.set_all(list).unwrap();
        assert_eq!(
            config,
            Config {
                performance: Performance::Latency,
                n_requests: Some(3),
                n_threads: Some(2),
                precision: Precision::Bf16,
                cache_folder: Some("/a b/c".into()),
                profiling: true,
                exclusive_requests: true,
                callback_thread: true,
                batch_size: 4,
                batch_timeout: Duration::from_micros(2500),
                batch_independent: true,
                engine_options: [("OPENVINO.NUM_STREAMS", "2"), ("ORT.session.x", "a=b")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                ..Config::default()
            }
        );
        assert_eq!(config.options_of("ORT").collect::<Vec<_>>(), [("session.x", "a=b")]);
        assert_eq!(config.options_of("NULL").count(), 0);
    }

    #[test]
    fn several_addresses_are_one_option() {
        for list in ["remote.url=grpc://a:1/m,grpc://b:2/m,threads=2", "remote.url=grpc://a:1/m,threads=2,remote.url=grpc://b:2/m"] {
            let mut config = Config::default();
            config.set("remote.url", "grpc://old:1/m").unwrap();
            config.set_all(list).unwrap();
            assert_eq!((&*config.engine_options["remote.url"], config.n_threads), ("grpc://a:1/m,grpc://b:2/m", Some(2)), "{list}");
        }
        let error = Config::default().set_all("threads=2,grpc://a:1/m").unwrap_err();
        assert!(error.to_string().contains("expected `name=value`"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_an_option_is_said_with_what_was_expected() {
        for (list, says) in [
            ("thread=2", "no option `thread`: expected one of performance, requests, threads"),
            ("threads=0", "option `threads`: expected a number from 1 to 4096, got `0`"),
            ("threads=two", "got `two`"),
            ("threads", "expected `name=value`, with commas between, got `threads`"),
            ("performance=fast", "expected `throughput` or `latency`, got `fast`"),
            ("precision=f64", "expected `f32`, `bf16` or `f16`, got `f64`"),
            ("profiling=yes", "expected `true` or `false`, got `yes`"),
            ("batch-size=1025", "expected a number from 1 to 1024, got `1025`"),
            ("batch-timeout=-1", "expected milliseconds, 0 or more, got `-1`"),
            ("batch-timeout=nan", "got `nan`"),
            ("cache-folder=", "option `cache-folder`: expected a folder, got ``"),
        ] {
            let error = Config::default().set_all(list).unwrap_err();
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(says), "{list}: {error}");
        }
    }
}
