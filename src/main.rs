//! Entry point of the command `roiflow`.

use std::process::ExitCode;

fn main() -> ExitCode {
    roiflow::cli::main()
}
