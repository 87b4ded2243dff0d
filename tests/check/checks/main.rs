//! Model checks: tries interleavings of the runtime's threads. `check-models` runs all checks, each in a separate process.
//! `check-models NAME...` runs only the named checks. `--list` prints their names.

mod batching;
mod blocking;
mod explore;
mod flow;
mod futures;
mod leases;
mod nodes;
mod pools;
mod queue;
mod request;
mod world;

use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// A check: its name, its bounds, and a function that returns the number of schedules.
pub struct Check {
    pub name: &'static str,
    pub bounds: &'static str,
    pub run: fn() -> usize,
}

const INSIDE: &str = "--inside";

fn main() -> ExitCode {
    let checks: Vec<Check> =
        [request::checks(), leases::checks(), pools::checks(), futures::checks(), queue::checks(), batching::checks(), blocking::checks(), flow::checks(), nodes::checks()].into_iter().flatten().collect();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--list") => {
            checks.iter().for_each(|check| println!("{}", check.name));
            return ExitCode::SUCCESS;
        }
        Some(INSIDE) => {
            let check = checks.iter().find(|check| check.name == arguments[1]).expect("the caller took it from the list");
            println!("{}", (check.run)());
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    if let Some(unknown) = arguments.iter().find(|name| checks.iter().all(|check| check.name != **name)) {
        eprintln!("no check is called `{unknown}`; --list names them");
        return ExitCode::FAILURE;
    }
    let chosen: Vec<&Check> =
        checks.iter().filter(|check| arguments.is_empty() || arguments.iter().any(|name| name == check.name)).collect();
    let (next, failed, total) = (Mutex::new(chosen.iter()), Mutex::new(false), Mutex::new(0));
    let n_workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                loop {
                    let Some(check) = next.lock().unwrap().next() else { break };
                    let begin = Instant::now();
                    let program = std::env::current_exe().expect("the program that runs");
                    let output = Command::new(program).args([INSIDE, check.name]).stderr(Stdio::piped()).output().expect("a child process");
                    let (out, seconds) = (String::from_utf8_lossy(&output.stdout), begin.elapsed().as_secs_f64());
                    match out.trim().parse::<usize>() {
                        Ok(n) if output.status.success() => {
                            *total.lock().unwrap() += n;
                            println!("{:<78} ok {n:>8} schedules {seconds:>5.1} s  ({})", check.name, check.bounds);
                        }
                        _ => {
                            *failed.lock().unwrap() = true;
                            println!(
                                "{:<78} FAILED after {seconds:.1} s: {}\n{}\n{out}",
                                check.name,
                                output.status,
                                String::from_utf8_lossy(&output.stderr)
                            );
                        }
                    }
                }
            });
        }
    });
    println!("{} checks, {} schedules", chosen.len(), total.into_inner().unwrap());
    if failed.into_inner().unwrap() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
