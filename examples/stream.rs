//! Pushes frames into a pipeline description and iterates over the results.

fn main() {}
