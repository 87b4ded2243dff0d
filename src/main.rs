//! Calls the command line and turns its result into an exit code; nothing else.

fn main() {}
