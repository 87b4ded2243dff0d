//! Reports a panic of the program as a one-line error with an exit code.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::process::ExitCode;

use super::terminal::Terminal;

/// Installs a panic hook that prints panics of all threads as errors.
pub(super) fn print_as_errors(terminal: &Terminal) {
    let terminal = terminal.clone();
    std::panic::set_hook(Box::new(move |info| {
        if !is_expected() {
            terminal.error(describe(info));
        }
    }));
}

/// Runs the command and returns its exit code, or exit code 1 if it panics.
pub(super) fn guard(command: impl FnOnce() -> ExitCode) -> ExitCode {
    catch_unwind(AssertUnwindSafe(command)).unwrap_or(ExitCode::FAILURE)
}

/// Whether this thread reads a file that may be damaged, and its panic is reported as an error of the file.
fn is_expected() -> bool {
    #[cfg(feature = "serve")]
    return std::thread::current().name() == Some(roiflow_server::store::CHECKING_THREAD);
    #[cfg(not(feature = "serve"))]
    false
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload().downcast_ref::<&str>().copied().or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("no message").lines().next().unwrap_or_default();
    let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    format!("internal error: {message}{place}; this is a bug in roiflow: please report it, and include the command that you ran")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_returns_exit_code_1() {
        assert_eq!(format!("{:?}", guard(|| panic!("on purpose"))), format!("{:?}", ExitCode::from(1)));
        assert_eq!(format!("{:?}", guard(|| ExitCode::from(3))), format!("{:?}", ExitCode::from(3)));
    }
}
