//! Calls the command line and turns its result into an exit code; nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    roiflow::cli::main()
}
