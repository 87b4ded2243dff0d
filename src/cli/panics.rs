//! The last resort for defects of the program itself: one line for people, and an exit code, instead of a panic's own text.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::process::ExitCode;

use super::terminal::Terminal;

/// Prints panics of all threads as errors from now on.
pub(super) fn print_as_errors(terminal: &Terminal) {
    let terminal = terminal.clone();
    std::panic::set_hook(Box::new(move |info| terminal.error(describe(info))));
}

/// Runs the command; a panic is exit code 1.
pub(super) fn guard(command: impl FnOnce() -> ExitCode) -> ExitCode {
    catch_unwind(AssertUnwindSafe(command)).unwrap_or(ExitCode::FAILURE)
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload().downcast_ref::<&str>().copied().or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("no message").lines().next().unwrap_or_default();
    let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    format!("internal error: {message}{place}; this is a defect of roiflow, please report it with the command that you ran")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_exit_code_1() {
        assert_eq!(format!("{:?}", guard(|| panic!("on purpose"))), format!("{:?}", ExitCode::from(1)));
        assert_eq!(format!("{:?}", guard(|| ExitCode::from(3))), format!("{:?}", ExitCode::from(3)));
    }
}
