//! Reads users and passwords of inputs from the environment, or from a netrc file as curl and ftp use it, so that they need not be on the
//! command line.
//!
//! The login of the environment names no host. It is used for the hosts in [`HOSTS`], or else for those that the command line names. A server,
//! whose clients name hosts, accepts only logins with hosts.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Error, Result};
use crate::redaction::Secrets;
use crate::stages::files;

/// Environment variable with the user name of inputs.
pub const USER: &str = "ROIFLOW_INPUT_USER";
/// Environment variable with the password of inputs.
pub const PASSWORD: &str = "ROIFLOW_INPUT_PASSWORD";
/// Environment variable with the path of a file that contains the password, instead of [`PASSWORD`].
pub const PASSWORD_FILE: &str = "ROIFLOW_INPUT_PASSWORD_FILE";

/// Environment variable with the hosts that get the user and the password, with commas between.
pub const HOSTS: &str = "ROIFLOW_INPUT_HOSTS";

/// Maximum size of a credentials file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A user and a password, both optional.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
}

/// Users and passwords, by host.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Pairs of host and login. A login without a host (`None`) is for all hosts. The first match is used.
    entries: Vec<(Option<String>, Login)>,
    /// The login of the environment.
    of_environment: Login,
    /// The hosts that get the login of the environment; `None`: [`HOSTS`] is not set.
    hosts: Option<Vec<String>>,
    /// Warnings about credentials files that other users can read.
    warnings: Vec<String>,
}

impl Credentials {
    /// Reads a netrc file, if `file` is given, and the environment variables. The login of the environment is used for the hosts in
    /// [`HOSTS`] for which the file has none.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or parsed.
    pub fn read(file: Option<&Path>) -> Result<Self> {
        let mut credentials = match file {
            Some(path) => {
                let (text, warning) = read(path, "credentials")?;
                let mut credentials = Self::netrc(&text).map_err(|error| error.context(format!("credentials `{}`", path.display())))?;
                credentials.warnings.extend(warning);
                credentials
            }
            None => Self::default(),
        };
        let (user, mut password) = (variable(USER)?, variable(PASSWORD)?);
        if let Some(path) = variable(PASSWORD_FILE)? {
            if password.is_some() {
                return Err(Error::usage(format!("expected one of {PASSWORD} and {PASSWORD_FILE}, got both. Unset one of them")));
            }
            let (text, warning) = read(Path::new(&path), PASSWORD_FILE)?;
            credentials.warnings.extend(warning);
            password = Some(text.trim_end_matches(['\n', '\r']).to_owned());
        }
        credentials.of_environment = Login { user, password };
        let hosts = variable(HOSTS)?.map(|text| words_of(&text));
        credentials.hosts = hosts.filter(|hosts: &Vec<String>| !hosts.is_empty());
        Ok(credentials)
    }

    /// Uses the login of the environment for these hosts, unless [`HOSTS`] lists others. A host may include a port.
    #[must_use]
    pub fn for_hosts(mut self, named: impl IntoIterator<Item = String>) -> Self {
        self.hosts.get_or_insert_with(|| named.into_iter().collect());
        self
    }

    /// Returns the credentials for a server, whose clients name the hosts.
    ///
    /// # Errors
    /// Returns `Usage` if a login is for all hosts.
    pub fn for_clients(self) -> Result<Self> {
        let has_login = self.of_environment != Login::default();
        if has_login && self.hosts.is_none() {
            return Err(Error::usage(format!(
                "{USER}, {PASSWORD}: expected the hosts that get this login, got none. Clients of the server can name any host, so set {HOSTS} to \
                 the hosts of the cameras, such as `192.168.1.20,gate.local:8554`, or use --input-credentials FILE"
            )));
        }
        if self.entries.iter().any(|(machine, _)| machine.is_none()) {
            return Err(Error::usage(
                "--input-credentials: expected entries with `machine HOST`, got `default`. Clients of the server can name any host, so name each \
                 host that gets a login",
            ));
        }
        Ok(self)
    }

    /// Parses a netrc file: `machine HOST login USER password PASSWORD`, in any number of lines, and `default` for all other hosts.
    /// `HOST` may include a port. Values with spaces are quoted.
    ///
    /// # Errors
    /// Returns `Usage` with the line number if the file has a syntax error.
    pub fn netrc(text: &str) -> Result<Self> {
        let wrong = |line: usize, expected: &str| Error::usage(format!("line {line}: expected {expected}"));
        let mut tokens = tokens(text)?.into_iter();
        let mut entries: Vec<(Option<String>, Login)> = Vec::new();
        while let Some((line, key)) = tokens.next() {
            let mut value = || tokens.next().map(|(_, value)| value).ok_or_else(|| wrong(line, &format!("a value after `{key}`")));
            match &*key {
                "machine" => entries.push((Some(value()?), Login::default())),
                "default" => entries.push((None, Login::default())),
                "account" => drop(value()?),
                "login" | "password" => {
                    let value = value()?;
                    let Some((_, login)) = entries.last_mut() else { return Err(wrong(line, "`machine HOST` first")) };
                    *(if key == "login" { &mut login.user } else { &mut login.password }) = Some(value);
                }
                // The message does not contain the unexpected word, because it may be part of a password.
                _ => return Err(wrong(line, "machine, default, login or password")),
            }
        }
        Ok(Self { entries, ..Self::default() })
    }

    /// Returns the login for `host`, which may include a port. If `user` is given, only an entry of that user, or without a user,
    /// is used.
    pub fn of(&self, host: &str, user: Option<&str>) -> Login {
        let is_of_host = |machine: &Option<String>| machine.as_ref().is_none_or(|machine| is_host(machine, host));
        let is_of_user = |login: &Login| user.is_none() || login.user.is_none() || login.user.as_deref() == user;
        let mut fitting = self.entries.iter().filter(|(machine, login)| is_of_host(machine) && is_of_user(login));
        // An entry of the host itself takes precedence.
        let found = fitting.clone().find(|(machine, _)| machine.is_some()).or_else(|| fitting.next());
        let of_environment = || {
            let is_listed = self.hosts.as_ref().is_some_and(|hosts| is_among(host, hosts));
            Some(&self.of_environment).filter(|login| is_listed && is_of_user(login))
        };
        found.map(|(_, login)| login).or_else(of_environment).cloned().unwrap_or_default()
    }

    /// Returns the hosts for which this login is set by name.
    pub(super) fn hosts_of(&self, login: &Login) -> Vec<String> {
        let of_file = self.entries.iter().filter(|(_, other)| other == login).filter_map(|(machine, _)| machine.clone());
        let of_environment = self.hosts.iter().flatten().filter(|_| self.of_environment == *login).cloned();
        of_file.chain(of_environment).collect()
    }

    /// Returns the passwords, which must be removed from any text that is shown or logged.
    pub fn secrets(&self) -> Secrets {
        let mut secrets = Secrets::default();
        let logins = self.entries.iter().map(|(_, login)| login).chain([&self.of_environment]);
        logins.filter_map(|login| login.password.as_ref()).for_each(|password| secrets.add(password));
        secrets
    }

    /// Returns the warnings about the permissions of the files.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.entries.len() + usize::from(self.of_environment != Login::default()))
    }
}

/// Whether a host, which may include a port, is in a list. A host without a port in the list stands for all its ports.
pub(super) fn is_among(host: &str, hosts: &[String]) -> bool {
    hosts.iter().any(|listed| is_host(listed, host))
}

fn is_host(listed: &str, host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    [host, name].iter().any(|host| listed.eq_ignore_ascii_case(host)) || listed.trim_matches(['[', ']']).eq_ignore_ascii_case(name)
}

/// Returns the parts of a list, with commas or spaces between.
fn words_of(list: &str) -> Vec<String> {
    list.split([',', ' ', '\n', '\t']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns the words of a netrc file with their line numbers, without comments and macros. A macro ends at an empty line.
fn tokens(text: &str) -> Result<Vec<(usize, String)>> {
    let mut tokens: Vec<(usize, String)> = Vec::new();
    let (mut is_in_macro, mut is_value) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        if is_in_macro {
            is_in_macro = !line.trim().is_empty();
            continue;
        }
        let mut rest = line.trim_start();
        // A comment begins with `#` only where a key is expected: a value may begin with `#`, or equal a key.
        while !rest.is_empty() && (is_value || !rest.starts_with('#')) {
            let (word, behind) = word(rest).ok_or_else(|| Error::usage(format!("line {number}: expected a closing quote (\")")))?;
            if word == "macdef" && !is_value {
                is_in_macro = true;
                break;
            }
            is_value = !is_value && matches!(&*word, "machine" | "login" | "password" | "account");
            tokens.push((number, word));
            rest = behind.trim_start();
        }
    }
    Ok(tokens)
}

/// Returns the first word without its quotes, and the rest of the text.
fn word(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let (mut word, mut is_escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            '\\' if !is_escaped => is_escaped = true,
            '"' if !is_escaped => return Some((word, &quoted[at + 1..])),
            _ => {
                word.push(c);
                is_escaped = false;
            }
        }
    }
    None
}

fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::usage(format!("{name}: expected UTF-8"))),
    }
}

/// Returns the text of a file with secrets, and a warning if every user can read it.
fn read(path: &Path, what: &str) -> Result<(String, Option<String>)> {
    let failed = |reason: &dyn std::fmt::Display| Error::failed(format!("cannot read {what} `{}`: {reason}", path.display()));
    let file = files::open_regular(path, what).map_err(|error| Error::failed(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(&format_args!("expected at most {FILE_BYTES_MAX} bytes")));
    }
    let is_open = metadata.is_file() && metadata.permissions().mode() & 0o004 != 0;
    let warning =
        is_open.then(|| format!("every user of this machine can read the passwords in `{}`; run `chmod 600` on it", path.display()));
    Ok((text, warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_of_the_environment_is_for_listed_hosts() {
        let login = Login { user: Some("u".into()), password: Some("hunter22".into()) };
        let of_environment = Credentials { of_environment: login.clone(), ..Credentials::default() };
        let hosts = |hosts: &str| Credentials { hosts: Some(words_of(hosts)), ..of_environment.clone() };
        let listed = hosts("door, gate:8554\n[::1],::2");
        for (host, is_listed) in [
            ("door", true),
            ("DOOR:554", true),
            ("gate:8554", true),
            ("gate", false),
            ("gate:554", false),
            ("[::1]:554", true),
            ("[::2]", true),
            ("door.evil", false),
            ("evil", false),
            ("", false),
        ] {
            assert_eq!(listed.of(host, None) == login, is_listed, "{host}");
            // The list takes precedence over hosts of the command line.
            assert_eq!(listed.clone().for_hosts(["evil".to_owned()]).of(host, None) == login, is_listed, "{host}");
        }
        assert!(of_environment.of("door", None) == Login::default());
        assert!(of_environment.clone().for_hosts(["door".to_owned()]).of("door", None) == login);
        assert_eq!(of_environment.hosts_of(&login), Vec::<String>::new());
        let error = of_environment.for_clients().unwrap_err().to_string();
        assert!(error.contains(HOSTS) && !error.contains("hunter22"), "{error}");
        assert!(listed.for_clients().is_ok());
        assert!(Credentials::netrc("machine a login b password c").unwrap().for_clients().is_ok());
        let error = Credentials::netrc("machine a login b password c\ndefault login d password e").unwrap().for_clients().unwrap_err();
        assert!(error.to_string().contains("got `default`"), "{error}");
    }

    #[test]
    fn netrc_syntax_is_parsed() {
        let text = "# cameras\nmachine door login admin password p#w\nmachine gate:8554\n  login \"a b\" # of the gate\n  password \"q\\\"\\\\\"\n\
            macdef init\n  cd /x\n  machine no\n\nmachine [::1] login v6 password six\ndefault login any password login\n";
        let credentials = Credentials::netrc(text).unwrap();
        for (host, user, login) in [
            ("door", None, Some(("admin", "p#w"))),
            ("DOOR:554", Some("admin"), Some(("admin", "p#w"))),
            ("door", Some("other"), None),
            ("gate:8554", None, Some(("a b", "q\"\\"))),
            ("gate", None, Some(("any", "login"))),
            ("[::1]", None, Some(("v6", "six"))),
            ("elsewhere", Some("any"), Some(("any", "login"))),
        ] {
            let got = credentials.of(host, user);
            assert_eq!(got.user.as_deref().zip(got.password.as_deref()), login, "{host} {user:?}");
        }
        assert!(!format!("{credentials:?}").contains("p#w"));
        for (text, says) in [
            ("login x", "line 1: expected `machine HOST` first"),
            ("machine", "line 1: expected a value"),
            ("machine a\nlogin b s3cret", "line 2: expected machine, default, login or password"),
            ("machine a password \"x", "closing quote"),
        ] {
            let error = Credentials::netrc(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("s3cret"), "{error}");
        }
    }
}
