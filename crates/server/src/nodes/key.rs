//! The key that the nodes share: it encrypts the items that they share, and the tokens of the nodes are derived from it.
//!
//! Items contain passwords of cameras and brokers. The coordinator stores them on other machines, so it only gets them encrypted, with
//! ChaCha20-Poly1305 and a random nonce for each write. `sealed` lists the data that is authenticated with them. The key itself is a file that the
//! administrator copies to each machine; it is never sent, logged or shown.
//!
//! Random nonces of 12 bytes are safe for about 2^32 writes with one key. 100 nodes reach this number after four years.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::state_folder;
use crate::token::Role;

/// Length of the key in bytes.
const N_BYTES: usize = 32;
/// First word of the file, with the version of its format.
const HEAD: &str = "roiflow-key-1";
/// First word of a description that an earlier version of roiflow has encrypted.
const SEALED: &str = "sealed-1:";

/// The key that the nodes share. Its parts are derived from the bytes of the file, so no part tells another.
pub struct Key {
    items: LessSafeKey,
    /// Of descriptions that earlier versions of roiflow have encrypted.
    descriptions: LessSafeKey,
    /// Token of requests from node to node.
    peer: String,
    viewer: String,
    operator: String,
}

impl Key {
    /// Writes a new random key into a file that only its owner may read.
    ///
    /// # Errors
    /// Returns an error if the file exists or cannot be written, or the system has no random numbers.
    pub fn create(path: &Path) -> Result<(), String> {
        use std::os::unix::fs::OpenOptionsExt;
        let failed = |error: &dyn fmt::Display| format!("create the key `{}` failed: {error}", path.display());
        let mut bytes = [0; N_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| failed(&"the system has no random numbers"))?;
        let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => failed(&"expected a new file, got one that exists. Name another file, or remove that one"),
            _ => failed(&error),
        })?;
        let written = file.write_all(format!("{HEAD} {}\n", STANDARD.encode(bytes)).as_bytes()).and_then(|()| file.sync_all());
        // Root may create the key for a service that runs as another user.
        written.and_then(|()| state_folder::protect(path, 0o600)).map_err(|error| failed(&error))
    }

    /// Reads the key from a file that [`Key::create`] has written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is no key, or other users may read it.
    pub fn read(path: &Path) -> Result<Self, String> {
        use std::os::unix::fs::PermissionsExt;
        let failed = |error: &dyn fmt::Display| format!("read the key `{}` failed: {error}", path.display());
        let mode = fs::metadata(path).map_err(|error| failed(&error))?.permissions().mode();
        if mode & 0o007 != 0 {
            let found = format!("permissions {:o}", mode & 0o777);
            return Err(failed(&format_args!("expected a file that other users may not read, got {found}. Run `chmod 600` on it")));
        }
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        let bytes = text.trim().strip_prefix(HEAD).and_then(|rest| STANDARD.decode(rest.trim()).ok());
        let bytes = bytes.filter(|bytes| bytes.len() == N_BYTES);
        let bytes = bytes.ok_or_else(|| failed(&"expected a key, got other text. `roiflow node --create-key FILE` writes a key"))?;
        Ok(Self::of(&bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        // Each use has its own part: the keyed hash of the name of the use.
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let part = |name: &str| hmac::sign(&root, format!("roiflow {name}").as_bytes());
        let token = |name: &str| format!("roiflow_{}", URL_SAFE_NO_PAD.encode(part(name)));
        let cipher = |name: &str| {
            let unbound = UnboundKey::new(&CHACHA20_POLY1305, part(name).as_ref());
            LessSafeKey::new(unbound.expect("the hash is as long as the key of the cipher"))
        };
        let (items, descriptions) = (cipher("items"), cipher("descriptions"));
        let (peer, viewer, operator) = (token("token of nodes"), token("token of viewers"), token("token of operators"));
        Self { items, descriptions, peer, viewer, operator }
    }

    /// The token of requests from node to node.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether a text is the token of nodes. Hashes are compared, so the time of the comparison tells nothing about the token.
    pub(crate) fn is_peer(&self, token: &str) -> bool {
        let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        hash(token).as_ref() == hash(&self.peer).as_ref()
    }

    /// A token of this role that all nodes with this key accept.
    pub fn token(&self, role: Role) -> &str {
        match role {
            Role::Viewer => &self.viewer,
            Role::Operator => &self.operator,
        }
    }

    /// Encrypts a value, and authenticates the context with it.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub(super) fn seal_item(&self, context: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        encrypt(&self.items, context, value).ok_or_else(|| "encrypt an item failed: the system has no random numbers".to_owned())
    }

    /// Decrypts a value. Returns `None` if it was encrypted with another key or context, or was changed.
    pub(super) fn open_item(&self, context: &str, sealed: Vec<u8>) -> Option<Vec<u8>> {
        decrypt(&self.items, context, sealed)
    }

    /// Decrypts the description of a stream that an earlier version of roiflow has encrypted.
    ///
    /// # Errors
    /// Returns an error if the text was encrypted with another key or for another stream, or was changed.
    pub(super) fn open_description(&self, stream: &str, sealed: &str) -> Result<String, String> {
        let bytes = sealed.strip_prefix(SEALED).and_then(|text| STANDARD.decode(text).ok());
        let opened = bytes.and_then(|bytes| decrypt(&self.descriptions, stream, bytes)).and_then(|text| String::from_utf8(text).ok());
        opened.ok_or_else(|| {
            format!(
                "decrypt the description of the stream `{stream}` failed: expected one that was encrypted with this key, got another one. \
                 Name the file --key with which it was encrypted, or remove the stream"
            )
        })
    }
}

/// Returns a nonce, the encrypted value and its tag; `None`: the system has no random numbers.
fn encrypt(cipher: &LessSafeKey, context: &str, value: &[u8]) -> Option<Vec<u8>> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let mut bytes = value.to_vec();
    cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(context.as_bytes()), &mut bytes).ok()?;
    Some([&nonce[..], &bytes].concat())
}

fn decrypt(cipher: &LessSafeKey, context: &str, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
    let (nonce, content) = sealed.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    cipher.open_in_place(nonce, Aad::from(context.as_bytes()), content).ok().map(|value| value.to_vec())
}

/// Whether the description of a stream was encrypted by an earlier version of roiflow.
pub(super) fn is_sealed(text: &str) -> bool {
    text.starts_with(SEALED)
}

/// Shows nothing of the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
impl Key {
    /// Encrypts a description as earlier versions of roiflow did.
    pub(super) fn seal_description(&self, stream: &str, text: &str) -> String {
        format!("{SEALED}{}", STANDARD.encode(encrypt(&self.descriptions, stream, text.as_bytes()).unwrap()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(folder: &Path, name: &str) -> Key {
        Key::create(&folder.join(name)).unwrap();
        Key::read(&folder.join(name)).unwrap()
    }

    #[test]
    fn value_opens_only_with_its_key_and_its_context() {
        let folder = tempfile::tempdir().unwrap();
        let (key, other) = (key(folder.path(), "key"), key(folder.path(), "other"));
        let value = br#"{"input":"rtsp://admin:secret77@cam/"}"#;
        let sealed = key.seal_item("door", value).unwrap();
        assert!(!sealed.windows(8).any(|part| part == b"secret77"));
        assert_ne!(sealed, key.seal_item("door", value).unwrap(), "each write has its own nonce");
        assert_eq!(key.open_item("door", sealed.clone()).unwrap(), value);
        let mut changed = sealed.clone();
        changed[20] ^= 1;
        for (key, context, sealed) in
            [(&other, "door", sealed.clone()), (&key, "gate", sealed), (&key, "door", changed), (&key, "door", vec![7; 5])]
        {
            assert_eq!(key.open_item(context, sealed), None);
        }
    }

    #[test]
    fn file_of_the_key_is_private_and_never_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = key(folder.path(), "key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Key::create(&path).unwrap_err().contains("got one that exists"));
        let again = Key::read(&path).unwrap();
        assert_eq!(again.peer(), key.peer());
        let tokens = [key.peer(), key.token(Role::Viewer), key.token(Role::Operator)];
        assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2], "a viewer cannot act as a node");
        assert_eq!(format!("{key:?}"), "Key");
        state_folder::protect(&path, 0o644).unwrap();
        assert!(Key::read(&path).unwrap_err().contains("chmod 600"));
        state_folder::protect(&path, 0o600).unwrap();
        fs::write(&path, "roiflow-key-1 AAAA\n").unwrap();
        assert!(Key::read(&path).unwrap_err().contains("--create-key"));
    }
}
