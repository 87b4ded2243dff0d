//! Users and passwords of inputs that are read again while the program runs, so that a changed password needs no restart.
//!
//! They are read when a stream starts, and for each attempt to open a lost source again. A running source keeps its login. A file that is
//! damaged or missing at that time changes nothing.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::{Credentials, Result};
use crate::redaction::Secrets;

/// See the module. Clones are the same logins.
#[derive(Clone)]
pub struct Logins(Arc<Shared>);

struct Shared {
    read: Box<dyn Fn() -> Result<Credentials> + Send + Sync>,
    /// Receives passwords that must not appear in messages.
    hide: Box<dyn Fn(Secrets) + Send + Sync>,
    current: RwLock<Arc<Credentials>>,
    /// Why the last attempt has failed.
    failure: Mutex<Option<String>>,
}

impl Logins {
    /// Reads the logins for the first time. `read` reads the files and the environment. `hide` receives the passwords, which must not appear in
    /// messages.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub fn new(
        read: impl Fn() -> Result<Credentials> + Send + Sync + 'static,
        hide: impl Fn(Secrets) + Send + Sync + 'static,
    ) -> Result<Self> {
        let first = read()?;
        hide(first.secrets());
        let current = RwLock::new(Arc::new(first));
        Ok(Self(Arc::new(Shared { read: Box::new(read), hide: Box::new(hide), current, failure: Mutex::default() })))
    }

    /// Returns the logins that were read last.
    pub fn current(&self) -> Arc<Credentials> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the logins again.
    ///
    /// # Errors
    /// Returns why they cannot be read. Then the earlier ones stay in use.
    pub fn reload(&self) -> Result<()> {
        let read = (self.0.read)();
        *self.0.failure.lock().unwrap_or_else(PoisonError::into_inner) = read.as_ref().err().map(ToString::to_string);
        let read = read?;
        (self.0.hide)(read.secrets());
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
        Ok(())
    }

    /// Reads the logins again, and returns them. If that is not possible, returns the earlier ones, and says why once.
    pub fn newest(&self) -> Arc<Credentials> {
        let before = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(error) = self.reload()
            && before != Some(error.to_string())
        {
            tracing::warn!("the logins of inputs cannot be read again, and the earlier ones stay in use: {error}");
        }
        self.current()
    }
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logins({:?})", self.current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Error, Input};

    #[test]
    fn attempt_uses_the_login_that_is_valid_then() {
        let text = Arc::new(Mutex::new(Ok::<_, ()>("machine door login admin password first".to_owned())));
        let hidden = Arc::new(Mutex::new(Secrets::default()));
        let (of_read, of_hide) = (text.clone(), hidden.clone());
        let read = move || match &*of_read.lock().unwrap() {
            Ok(text) => Credentials::netrc(text),
            Err(()) => Err(Error::failed("the file is missing")),
        };
        let logins = Logins::new(read, move |secrets| of_hide.lock().unwrap().extend(secrets)).unwrap();
        let input = Input::parse("rtmp://door/live").unwrap().with_logins(&logins).unwrap();
        let password = |input: &Input| {
            let secrets = input.secrets();
            ["first", "second"].into_iter().find(|password| secrets.scrub(password) != *password)
        };
        assert_eq!(password(&input), Some("first"));
        *text.lock().unwrap() = Ok("machine door login admin password second".to_owned());
        let again = input.with_newest_login();
        assert_eq!((password(&again), password(&input)), (Some("second"), Some("first")));
        assert_eq!(again, input, "it is the same input");
        assert_ne!(hidden.lock().unwrap().scrub("second"), "second");
        *text.lock().unwrap() = Err(());
        assert!(logins.reload().is_err());
        assert_eq!(password(&again.with_newest_login()), Some("second"), "the earlier login stays in use");
        *text.lock().unwrap() = Ok(String::new());
        assert_eq!(password(&again.with_newest_login()), None, "a login that was removed is not used any more");
        // A login in the address stays.
        let own = Input::parse("rtmp://u:first@door/live").unwrap().with_logins(&logins).unwrap();
        *text.lock().unwrap() = Ok("machine door login admin password second".to_owned());
        assert_eq!(password(&own.with_newest_login()), Some("first"));
    }
}
