//! Files that addresses name, the right to open them, and credentials that an administrator has configured.
//!
//! An address comes from the person who started the process, or from a client of a server. A client must not name files, because their content
//! would leave the machine, and errors would tell which files exist. So only [`FileAccess`] makes a [`NamedFile`] of an option, and only
//! a `NamedFile` can be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::Target;
use super::address::Address;
use super::options::{Kind, Scheme, schemes_for_clients};

/// Maximum size of a file: passwords, keys and certificates are smaller.
const MAX_BYTES: u64 = 1 << 20;

/// The right to use files and environment variables of this machine that an address names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAccess {
    /// For addresses of the person who started the process.
    Allowed,
    /// For addresses of clients, also if they were stored meanwhile. They can name credentials of the administrator.
    Refused(Credentials),
}

/// The credentials in the settings of a server, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "BTreeMap<String, Credential>")]
pub struct Credentials(Arc<BTreeMap<String, Credential>>);

/// A login and files for certain servers.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
struct Credential {
    /// Servers that may get them, such as `mqtts://broker:8883`.
    servers: Vec<String>,
    /// Options of addresses, without the prefix `x-`.
    #[serde(flatten)]
    options: BTreeMap<String, String>,
}

/// A file that an address or credentials name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    path: PathBuf,
    /// The name in messages. It has no path if a client reads the messages.
    shown: String,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    Text(String),
    File(NamedFile),
}

impl FileAccess {
    /// No files and no credentials.
    pub fn none() -> Self {
        Self::Refused(Credentials::default())
    }

    /// Whether errors mention the option `credentials`.
    pub(crate) fn has_credentials(&self) -> bool {
        *self != Self::Allowed
    }

    /// The file that an option names. Opens nothing.
    ///
    /// # Errors
    /// Returns an error if the address may not name files. It is the same whether the file exists or not.
    pub(crate) fn file(&self, option: &str, path: &str) -> Result<NamedFile, String> {
        self.check_power(option)?;
        Ok(NamedFile { path: path.into(), shown: format!("the file {path}") })
    }

    /// Checks the right to use an option with which a library opens files or runs commands.
    pub(crate) fn check_power(&self, option: &str) -> Result<(), String> {
        match self {
            Self::Allowed => Ok(()),
            Self::Refused(_) => Err(format!(
                "option {option}: expected none, because clients of a server cannot name its files, got one. Write the login into the URL, or \
                 use `credentials=NAME` with credentials from the settings of the server"
            )),
        }
    }

    /// The value of an environment variable.
    pub(crate) fn variable(&self, name: &str) -> Result<String, String> {
        match self {
            Self::Allowed => {
                std::env::var(name).map_err(|_| format!("environment variable {name}: expected a value, but the variable is not set"))
            }
            Self::Refused(_) => {
                Err("expected a URL without `${`, because clients of a server cannot name its environment variables, got one with `${`"
                    .to_owned())
            }
        }
    }

    /// The options of the credentials with this name, without the prefix, for the servers of an address.
    pub(crate) fn credentials(&self, name: &str, address: &Address) -> Result<Vec<(String, Setting)>, String> {
        let Self::Refused(all) = self else {
            return Err(
                "option credentials: expected none, because only `roiflow serve` and `roiflow node` have credentials in their settings, \
                        got one. Use the options user and password-file"
                    .to_owned(),
            );
        };
        let Some(found) = all.0.get(name) else {
            // The names of other credentials are not listed, because not each client may know them.
            return Err(format!("option credentials: expected a name from `[credentials]` in the settings of the server, got `{name}`"));
        };
        let mut allowed = Vec::new();
        for server in &found.servers {
            allowed.extend(server_of(server)?.endpoints());
        }
        if let Some((scheme, host, port)) = address.endpoints().into_iter().find(|endpoint| !allowed.contains(endpoint)) {
            return Err(format!(
                "option credentials: expected a server for which the credentials `{name}` are, got {scheme}://{host}:{port}. The setting \
                 `servers` of the credentials lists them"
            ));
        }
        let options = found.options.iter().map(|(option, value)| match kind(option, address.table(), address.has_tls()) {
            Some(Kind::File) => {
                let shown = format!("the file `{option}` of the credentials `{name}`");
                Ok((option.clone(), Setting::File(NamedFile { path: value.into(), shown })))
            }
            Some(Kind::Secret) => Ok((option.clone(), Setting::Text(value.clone()))),
            _ => Err(format!("credentials `{name}`: expected options for a login or TLS of {}://, got `{option}`", address.scheme)),
        });
        options.collect()
    }
}

impl From<BTreeMap<String, Credential>> for Credentials {
    fn from(all: BTreeMap<String, Credential>) -> Self {
        Self(Arc::new(all))
    }
}

impl Credentials {
    /// Makes the paths of files relative to a folder.
    pub fn resolve(&mut self, folder: &Path) {
        let has_file =
            |option: &str| schemes_for_clients().filter_map(Scheme::named).any(|table| kind(option, table, true) == Some(Kind::File));
        for credential in Arc::make_mut(&mut self.0).values_mut() {
            let files = credential.options.iter_mut().filter(|(option, _)| has_file(option));
            files.for_each(|(_, path)| *path = folder.join(&*path).to_string_lossy().into_owned());
        }
    }

    /// Checks the servers and options of all credentials, and reads their files.
    ///
    /// # Errors
    /// Returns the mistakes. The text has no passwords.
    pub fn check(&self) -> Result<(), String> {
        let mistakes = self.0.iter().filter_map(|(name, credential)| {
            let error = self.check_one(name, credential).err()?;
            Some(format!("credentials.{name}: {error}"))
        });
        let mistakes: Vec<String> = mistakes.collect();
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes.join("; ")) }
    }

    fn check_one(&self, name: &str, credential: &Credential) -> Result<(), String> {
        if credential.servers.is_empty() {
            return Err("expected `servers` with the servers that may get them, such as `mqtts://broker:8883`, got none".to_owned());
        }
        credential.servers.iter().try_for_each(|server| {
            let prefix = server_of(server)?.table().prefix;
            let url = format!("{}/?{prefix}credentials={name}", server.trim_end_matches('/'));
            Target::parse(&url, &FileAccess::Refused(self.clone())).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the value of an option is; `option` is without the prefix of the scheme.
fn kind(option: &str, table: &Scheme, has_tls: bool) -> Option<Kind> {
    table.kind(has_tls, &format!("{}{option}", table.prefix), false).ok().flatten()
}

/// Shows the servers and the names of the options.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("servers", &self.servers).field("options", &self.options.keys()).finish()
    }
}

/// Parses an item of `servers`.
fn server_of(server: &str) -> Result<Address, String> {
    let wrong = || format!("servers: expected servers such as `mqtts://broker:8883`, without login, path and options, got `{server}`");
    let scheme = server.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default();
    if !schemes_for_clients().any(|known| known == scheme) {
        let known: Vec<&str> = schemes_for_clients().collect();
        return Err(format!("servers: expected servers with one of the schemes {}, got `{server}`", known.join(", ")));
    }
    let table = Scheme::named(&scheme).ok_or_else(wrong)?;
    let address = Address::parse(server, table, &FileAccess::none()).map_err(|error| format!("servers: {error}, in `{server}`"))?;
    let is_plain = address.user.is_none() && address.password.is_none() && address.path.is_empty() && !server.contains('?');
    if is_plain { Ok(address) } else { Err(wrong()) }
}

impl NamedFile {
    /// The path, for a library that opens the file itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file in messages.
    #[cfg(feature = "tls")]
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Reads the file: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// Returns an error with the name of the file if the file cannot be read.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", self.shown));
        let wrong = |expected: &str| io::Error::new(ErrorKind::InvalidData, format!("{}: expected {expected}", self.shown));
        // Opening a FIFO would wait for a writer.
        if !std::fs::metadata(&self.path).map_err(failed)?.is_file() {
            return Err(wrong("a regular file, got a folder, a device or a FIFO"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(wrong("at most 1 MiB, got more"));
        }
        Ok(bytes)
    }

    /// Reads the first line of the file.
    ///
    /// # Errors
    /// Returns an error with the name of the file if the file cannot be read, or its first line is empty.
    pub fn first_line(&self) -> io::Result<String> {
        let wrong =
            |got: &str| io::Error::new(ErrorKind::InvalidData, format!("{}: expected a password in the first line, got {got}", self.shown));
        let text = String::from_utf8(self.read()?).map_err(|_| wrong("bytes that are not UTF-8"))?;
        // A program may be writing the file.
        text.lines().next().filter(|line| !line.is_empty()).map(str::to_owned).ok_or_else(|| wrong("an empty line"))
    }
}

/// The login of a server. A password in a file is read again for each connection, because it can change.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Replaces `password`.
    pub(crate) file: Option<NamedFile>,
}

impl Login {
    /// Whether there is a user or a password.
    #[cfg(feature = "http")]
    pub(crate) fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// The user and the password.
    ///
    /// # Errors
    /// Returns an error if the file of the password cannot be read.
    pub fn read(&self) -> io::Result<(Option<String>, Option<String>)> {
        let of_file = self.file.as_ref().map(NamedFile::first_line).transpose()?;
        Ok((self.user.clone(), of_file.or_else(|| self.password.clone())))
    }
}

/// Shows no login.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SCHEMES;

    /// A folder for one test, removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("roiflow-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, name: &str, text: &str) -> String {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn refused(url: &str, access: &FileAccess) -> String {
        Target::parse(url, access).expect_err(url).to_string()
    }

    /// The table is the list of cases, so a new scheme or option is tested, too.
    #[test]
    fn no_option_of_any_scheme_opens_a_file_without_the_right() {
        let folder = Folder::new("no right");
        let exists = folder.file("canary", "canary\n").replace(' ', "%20");
        let mut n_options = 0;
        for (table, has_tls) in SCHEMES.iter().flat_map(|table| [(table, false), (table, true)]) {
            let scheme = table.names[usize::from(has_tls)];
            let settings = ["rdkafka.ssl.ca.location", "rdkafka.plugin.library.paths", "rdkafka.sasl.oauthbearer.config"];
            let settings = settings.into_iter().filter(|_| table.settings.is_some()).map(str::to_owned);
            let files = table.all(has_tls).filter(|(_, kind)| *kind == Kind::File).map(|(name, _)| format!("{}{name}", table.prefix));
            for option in files.chain(settings).filter(|_| !scheme.is_empty()) {
                let error = |path: &str| refused(&format!("{scheme}://host/a?{option}={path}"), &FileAccess::none());
                let (of_file, of_nothing) = (error(&exists), error("/no/such/file"));
                assert!(of_file == of_nothing && of_file.starts_with(&format!("option {option}: expected none")), "{scheme}: {of_file}");
                n_options += 1;
            }
        }
        assert!(n_options > 30, "{n_options}");
    }

    #[test]
    fn addresses_of_clients_name_no_files_and_no_variables() {
        for url in ["file:///tmp/x", "FILE:///tmp/x", "/tmp/x", "-", "file:x"] {
            assert!(refused(url, &FileAccess::none()).contains("got a file"), "{url}");
        }
        for url in ["mqtt://${PATH}@host/a", "mqtt://u:${PATH}@host", "mqtt://host?client-id=${PATH}", "http://host/?a=${PATH}"] {
            assert!(refused(url, &FileAccess::none()).contains("environment variables"), "{url}");
        }
        for url in
            ["mqtt://me:word@host/a?retain=true", "http://me:word@host/a?x-secret=s&x-user=me&b=c", "redis://host?key=a", "tls://t@host"]
        {
            Target::parse(url, &FileAccess::none()).unwrap();
        }
    }

    #[test]
    fn wrong_files_are_mistakes_before_the_start() {
        let folder = Folder::new("wrong files");
        let [empty, text] = [("empty", ""), ("text", "no certificate\n")].map(|(name, text)| folder.file(name, text).replace(' ', "%20"));
        let wrong = |url: &str| refused(url, &FileAccess::Allowed);
        for scheme in ["mqtts", "tls", "rediss", "https"] {
            let prefix = if scheme == "https" { "x-" } else { "" };
            let missing = wrong(&format!("{scheme}://host?{prefix}ca=/nowhere.crt"));
            assert!(missing.starts_with("cannot read the file /nowhere.crt: No such file"), "{scheme}: {missing}");
            for file in [&empty, &text] {
                assert!(
                    wrong(&format!("{scheme}://host?{prefix}ca={file}")).contains("expected certificates in PEM form"),
                    "{scheme} {file}"
                );
            }
            let error = wrong(&format!("{scheme}://host?{prefix}cert={text}&{prefix}key={text}"));
            assert!(error.contains("in PEM form"), "{scheme}: {error}");
            let error = wrong(&format!("{scheme}://host?{prefix}password-file=/tmp"));
            assert!(error.contains("expected a regular file"), "{scheme}: {error}");
        }
        for option in ["x-token-file", "x-secret-file", "x-password-file"] {
            assert!(wrong(&format!("http://host?{option}=/no/such")).contains("cannot read the file /no/such"), "{option}");
            assert!(wrong(&format!("http://host?{option}={empty}")).contains("got an empty line"), "{option}");
        }
    }

    #[test]
    fn credentials_are_for_their_servers_only() {
        let folder = Folder::new("credentials");
        folder.file("word", "hunter22\n");
        let text = "{\"broker\": {\"servers\": [\"mqtt://broker\", \"http://hooks:8080\"], \"user\": \"me\", \"password-file\": \"word\"}}";
        let mut credentials: Credentials = serde_json::from_str(text).unwrap();
        assert!(credentials.check().unwrap_err().contains("credentials.broker: cannot read the file `password-file`"));
        credentials.resolve(&folder.0);
        credentials.check().unwrap();
        assert!(!format!("{credentials:?}").contains("me"));
        let access = FileAccess::Refused(credentials);
        for url in ["mqtt://BROKER:1883/a?credentials=broker", "http://hooks:8080/a?b=c&x-credentials=broker"] {
            Target::parse(url, &access).unwrap();
        }
        for (url, part) in [
            ("mqtt://other/a?credentials=broker", "got mqtt://other:1883"),
            ("mqtt://broker:1884/a?credentials=broker", "got mqtt://broker:1884"),
            ("mqtts://broker/a?credentials=broker", "got mqtts://broker:8883"),
            ("mqtt://broker,other/a?credentials=broker", "got mqtt://other:1883"),
            ("nats://broker:1883/a?credentials=broker", "got nats://broker:1883"),
            ("http://hooks/a?x-credentials=broker", "got http://hooks:80"),
            ("mqtt://broker/a?credentials=other", "expected a name from `[credentials]`"),
            ("mqtt://me:word@broker/a?credentials=broker", "expected a URL without another login"),
            ("mqtt://broker/a?credentials=broker&user=you", "expected a URL without another login"),
            ("mqtt://broker/a?credentials=broker&password-file=/etc/shadow", "option password-file: expected none"),
        ] {
            let error = refused(url, &access);
            assert!(error.contains(part) && !error.contains("hunter22"), "{url}: {error}");
        }
        std::fs::remove_file(folder.0.join("word")).unwrap();
        let error = refused("mqtt://broker/a?credentials=broker", &access);
        assert!(!error.contains(folder.0.to_str().unwrap()), "a client does not learn the path: {error}");
        let error = refused("mqtt://broker/a?credentials=broker", &FileAccess::Allowed);
        assert!(error.contains("only `roiflow serve` and `roiflow node`"), "{error}");
    }

    #[test]
    fn wrong_credentials_are_mistakes_of_the_settings() {
        for (text, part) in [
            ("{\"servers\": []}", "expected `servers`"),
            ("{\"servers\": [\"broker\"]}", "expected servers with one of the schemes mqtt, mqtts"),
            ("{\"servers\": [\"kafka://broker\"]}", "expected servers with one of the schemes mqtt, mqtts"),
            ("{\"servers\": [\"mqtt://u:p@broker\"]}", "without login, path and options"),
            ("{\"servers\": [\"mqtt://broker/a\"]}", "without login, path and options"),
            ("{\"servers\": [\"mqtt://broker:x\"]}", "expected a port"),
            ("{\"servers\": [\"mqtt://broker\"], \"retain\": \"true\"}", "expected options for a login or TLS of mqtt://, got `retain`"),
            ("{\"servers\": [\"mqtt://broker\"], \"token-file\": \"x\"}", "got `token-file`"),
            ("{\"servers\": [\"mqtt://broker\"], \"ca\": \"x\"}", "got `ca`"),
        ] {
            let credentials: Credentials = serde_json::from_str(&format!("{{\"a\": {text}}}")).unwrap();
            let error = credentials.check().unwrap_err();
            assert!(error.starts_with("credentials.a: ") && error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn password_file_is_read_for_each_connection() {
        let folder = Folder::new("changed word");
        let path = folder.file("word", "old\n").replace(' ', "%20");
        let table = Scheme::named("mqtt").unwrap();
        let mut address = Address::parse(&format!("mqtt://me@host?password-file={path}"), table, &FileAccess::Allowed).unwrap();
        let login = address.take_login().unwrap();
        let expected = |word: &str| (Some("me".to_owned()), Some(word.to_owned()));
        assert_eq!(login.read().unwrap(), expected("old"));
        folder.file("word", "new\n");
        assert_eq!(login.read().unwrap(), expected("new"));
        assert!(!format!("{login:?}").contains("new"));
    }
}
