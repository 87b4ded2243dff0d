//! Tokens: who may do what. A token is 256 random bits; only its SHA-256 is stored.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::state_folder;

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// See streams, results, pictures and metrics.
    Viewer,
    /// Also add, change, restart and remove streams.
    Operator,
}

impl Role {
    /// Returns the name of the role.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// The tokens of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    tokens: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    role: Role,
    /// SHA-256 of the token, base64.
    sha256: String,
}

fn hash(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, token.as_bytes()))
}

impl Tokens {
    /// Returns the path of the file with the tokens of a state folder.
    pub fn path_in(folder: &Path) -> PathBuf {
        folder.join("tokens.json")
    }

    /// Reads the tokens of a state folder; a missing file has none.
    ///
    /// # Errors
    /// Returns what is wrong with the file.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let path = Self::path_in(folder);
        let failed = |error: &dyn std::fmt::Display| format!("cannot read the tokens `{}`: {error}", path.display());
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                let advice = "Restore the file from a backup, or delete it and create new tokens with --create-token";
                failed(&format_args!("expected the tokens as JSON, got a damaged file ({error}). {advice}"))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Adds a token to a state folder, and returns it. It is not stored itself.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written, or the system has no random numbers.
    pub fn create(folder: &Path, role: Role) -> Result<String, String> {
        let mut tokens = Self::read(folder)?;
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).map_err(|_| "the system has no random numbers".to_owned())?;
        let token = format!("roiflow_{}", URL_SAFE_NO_PAD.encode(bytes));
        tokens.tokens.push(Entry { role, sha256: hash(&token) });
        let path = Self::path_in(folder);
        let write = || -> std::io::Result<()> {
            state_folder::create(folder)?;
            state_folder::replace(&path, &serde_json::to_vec_pretty(&tokens)?)
        };
        write().map_err(|error| format!("cannot write the tokens `{}`: {error}", path.display()))?;
        Ok(token)
    }

    /// Adds a token that is derived from the key of the nodes, without storing it.
    pub fn accept(&mut self, role: Role, token: &str) {
        self.tokens.push(Entry { role, sha256: hash(token) });
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the role of a token; `None` if it is not one of these.
    ///
    /// Hashes are compared, so the time of the comparison tells nothing about a token.
    pub fn role(&self, token: &str) -> Option<Role> {
        self.holder(token).map(|(role, _)| role)
    }

    /// Returns the role of a token, and the begin of its hash, which distinguishes it from others; `None` if it is not one of these.
    pub(crate) fn holder(&self, token: &str) -> Option<(Role, Option<String>)> {
        let hashed = hash(token);
        let role = self.tokens.iter().filter(|entry| entry.sha256 == hashed).map(|entry| entry.role).max()?;
        Some((role, hashed.get(..8).map(str::to_owned)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_stored_hashed_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        assert!(Tokens::read(folder.path()).unwrap().is_empty());
        let operator = Tokens::create(folder.path(), Role::Operator).unwrap();
        let viewer = Tokens::create(folder.path(), Role::Viewer).unwrap();
        let tokens = Tokens::read(folder.path()).unwrap();
        assert_eq!((tokens.role(&operator), tokens.role(&viewer)), (Some(Role::Operator), Some(Role::Viewer)));
        assert_eq!((tokens.role(""), tokens.role(&operator[1..])), (None, None));
        let text = fs::read_to_string(Tokens::path_in(folder.path())).unwrap();
        assert!(!text.contains(&operator) && !text.contains(operator.trim_start_matches("roiflow_")), "{text}");
        assert_eq!(fs::metadata(Tokens::path_in(folder.path())).unwrap().permissions().mode() & 0o077, 0);
        for damaged in ["{", "", "[]", "{\"tokens\": [{}]}"] {
            fs::write(Tokens::path_in(folder.path()), damaged).unwrap();
            let error = Tokens::read(folder.path()).unwrap_err();
            assert!(error.contains("tokens.json") && error.contains("Restore the file from a backup"), "{error}");
        }
    }
}
