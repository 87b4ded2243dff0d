//! The faults of a simulation, in rounds: faults for up to 60 s, and then 60 s without, after which the goals are checked.

use std::collections::BTreeSet;
use std::time::Duration;

use roiflow_nodes::Epoch;

use super::world::World;

/// Time in which faults begin and end.
const FAULTS: Duration = Duration::from_secs(60);
/// Time without faults at the end of each round.
const CALM: Duration = Duration::from_secs(60);

/// Something that begins or ends.
#[derive(Debug, Clone, Copy)]
enum Step {
    Kill(usize),
    KillPlanner,
    Restart(usize),
    RestartKilledPlanner,
    Cut(usize),
    Heal(usize),
    Pause(usize),
    Continue(usize),
    StopServer,
    StartServer,
    Drain(usize),
    EndDrain(usize),
}

/// Runs all rounds.
pub fn run(world: &mut World) -> Result<(), String> {
    world.run_until(Duration::from_secs(60))?;
    check_calm(world)?;
    for _ in 0..world.size.n_rounds {
        round(world)?;
    }
    Ok(())
}

fn round(world: &mut World) -> Result<(), String> {
    let begin = world.now;
    world.gaps.clear();
    let mut steps = plan(world);
    steps.sort_by_key(|(at, _)| *at);
    let mut faulty = BTreeSet::new();
    let mut drained = BTreeSet::new();
    let mut planner = None;
    let owned: Vec<Vec<(String, Epoch)>> = (0..world.nodes.len()).map(|node| world.owned(node)).collect();
    let mut needed = 0;
    for (at, step) in steps {
        world.run_until(begin + at)?;
        match step {
            Step::Kill(node) => {
                faulty.insert(node);
                world.kill(node);
            }
            Step::KillPlanner => {
                planner = world.planner().filter(|node| !faulty.contains(node));
                if let Some(node) = planner {
                    faulty.insert(node);
                    world.kill(node);
                }
            }
            Step::Restart(node) => world.restart(node),
            Step::RestartKilledPlanner => {
                if let Some(node) = planner {
                    world.restart(node);
                }
            }
            Step::Cut(node) => {
                faulty.insert(node);
                world.cut(node);
            }
            Step::Heal(node) => world.heal(node),
            Step::Pause(node) => {
                faulty.insert(node);
                world.pause(node);
            }
            Step::Continue(node) => world.unpause(node),
            Step::StopServer => world.stop_server(),
            Step::StartServer => world.start_server(),
            Step::Drain(node) => {
                needed += 2 * owned[node].len();
                drained.insert(node);
                let name = world.nodes[node].name.clone();
                world.write(roiflow_nodes::keys::drain(&name), Some(b"{}".to_vec()));
            }
            Step::EndDrain(node) => {
                let name = world.nodes[node].name.clone();
                world.write(roiflow_nodes::keys::drain(&name), None);
            }
        }
    }
    world.run_until(begin + FAULTS + CALM)?;
    world.figures.needed_moves += needed;
    check_calm(world)?;
    // A stream of a node without a fault is never interrupted.
    for (node, streams) in owned.iter().enumerate() {
        if faulty.contains(&node) {
            continue;
        }
        // A stream that moved may have been on a node that failed later, and have come back.
        let remaining = world.owned(node);
        let was_interrupted = |(stream, _): &(String, Epoch)| world.gaps.get(stream).is_some_and(|gap| *gap > Duration::from_secs(3));
        let interrupted = streams.iter().filter(|stream| remaining.contains(stream) && was_interrupted(stream));
        world.figures.interrupted += interrupted.count();
    }
    Ok(())
}

/// All streams run on exactly one node, and the load is even.
fn check_calm(world: &mut World) -> Result<(), String> {
    let now = world.now.as_secs_f64();
    let lost = world.lost();
    if !lost.is_empty() {
        return Err(format!("at {now:.0} s, {} streams have no results: {}", lost.len(), world.describe(&lost[0])));
    }
    let several = world.not_on_one_node();
    if !several.is_empty() && !world.size.keep_running {
        let text =
            format!("at {now:.0} s, {} streams do not run on exactly one node: {:?}", several.len(), &several[..several.len().min(5)]);
        return Err(text);
    }
    let imbalance = world.imbalance();
    world.figures.imbalances.push(imbalance);
    Ok(())
}

/// Chooses the faults of a round.
fn plan(world: &mut World) -> Vec<(Duration, Step)> {
    let mut steps = Vec::new();
    let mut used = BTreeSet::new();
    let n_faults = 1 + world.random.below(3);
    let (mut has_server, mut has_planner) = (false, false);
    for _ in 0..n_faults {
        let (begin, end) = (world.random.seconds(0.0, 20.0), world.random.seconds(22.0, 58.0));
        let node = world.random.below(world.nodes.len());
        let kind = world.random.below(6);
        // The planner's node is chosen later, so it is not combined with faults of other nodes.
        if !used.insert(node) && kind != 4 {
            continue;
        }
        let (name, first, last) = match kind {
            0 | 5 => ("node killed", Step::Kill(node), Step::Restart(node)),
            1 => ("node cut off", Step::Cut(node), Step::Heal(node)),
            2 => ("node stopped and continued", Step::Pause(node), Step::Continue(node)),
            3 => ("node drained", Step::Drain(node), Step::EndDrain(node)),
            _ if world.random.chance(0.5) => {
                if std::mem::replace(&mut has_server, true) {
                    continue;
                }
                ("coordinator restarted", Step::StopServer, Step::StartServer)
            }
            _ => {
                if std::mem::replace(&mut has_planner, true) || !used.is_empty() {
                    continue;
                }
                used.extend(0..world.nodes.len());
                ("planner killed", Step::KillPlanner, Step::RestartKilledPlanner)
            }
        };
        *world.figures.faults.entry(name).or_default() += 1;
        steps.extend([(begin, first), (end, last)]);
    }
    steps
}
