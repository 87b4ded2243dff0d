//! Turns panics of an engine into errors, without output on standard error.
//!
//! An engine that is written in Rust may panic on an unexpected model. This module catches such a panic and returns it as an error. Panics
//! elsewhere are not affected: the panic hook that was set before prints them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

thread_local! {
    /// `Some` while this thread is inside an engine. It then has the source location of the latest panic, or an empty text if there was no
    /// panic.
    static INSIDE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs code of an engine on this thread, and catches panics.
///
/// # Errors
/// Returns the message and the source location of the panic.
pub fn catch<T>(engine_code: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !note(panic) {
                previous(panic);
            }
        }));
    });
    let outer = INSIDE.replace(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(engine_code));
    let place = INSIDE.replace(outer).unwrap_or_default();
    done.map_err(|panic| {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("the engine failed with an internal error: {}{place}", one_line(said.unwrap_or("(no message)")))
    })
}

/// Records the location of a panic inside an engine. Returns false if the thread is not inside an engine.
fn note(panic: &PanicHookInfo<'_>) -> bool {
    INSIDE.with(|inside| match inside.try_borrow_mut() {
        Ok(mut inside) => match &mut *inside {
            Some(place) => {
                *place = panic.location().map(|at| format!(" ({}:{})", short(at.file()), at.line())).unwrap_or_default();
                true
            }
            None => false,
        },
        Err(_) => false,
    })
}

/// Shortens the path of a source file: removes the folders of the machine on which this program was built.
fn short(file: &str) -> &str {
    file.rsplit_once("/src/").map_or(file, |(folders, _)| &file[folders.rfind('/').map_or(0, |slash| slash + 1)..])
}

/// Returns the beginning of the message, on one line.
fn one_line(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let said = catch(|| -> u32 { panic!("no\nsuch axis") }).unwrap_err();
        assert!(said.contains("no such axis") && said.contains("devices/src/panics.rs:"), "{said}");
        assert_eq!(catch(|| 1), Ok(1));
        assert!(INSIDE.with(|inside| inside.borrow().is_none()));
    }

    #[test]
    fn panics_outside_of_engines_reach_the_earlier_hook() {
        let seen = catch(|| std::thread::spawn(|| INSIDE.with(|inside| inside.borrow().is_none())).join().unwrap());
        assert_eq!(seen, Ok(true), "another thread is not inside the engine");
        let nested = catch(|| catch(|| panic!("inner")).unwrap_err().contains("inner") && INSIDE.with(|inside| inside.borrow().is_some()));
        assert_eq!(nested, Ok(true), "after an inner call the thread is still inside the outer one");
    }
}
