//! A simulation of many nodes and a coordinator in one process, on virtual time: `cargo run -p roiflow-nodes --example simulate`.
//!
//! The nodes run the code of the product ([`roiflow_nodes::Agent`], [`roiflow_nodes::store::Store`]). The network, the clocks, the cameras
//! and the consumer of results are simulated. All random choices come from a seed, so each run can be repeated.

pub mod faults;
pub mod figures;
pub mod random;
pub mod world;

pub use figures::Figures;
pub use world::Size;

/// Runs a simulation. Returns its figures, or the first violation of an invariant.
pub fn run(size: &Size, seed: u64) -> Result<Figures, String> {
    let mut world = world::World::new(size.clone(), seed);
    faults::run(&mut world)?;
    Ok(world.figures)
}
