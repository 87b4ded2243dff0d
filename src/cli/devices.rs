//! `roiflow devices`: the devices that can run models.

use std::io::Write;

use crate::devices;

pub(super) fn list() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, info) in devices::core().devices() {
        writeln!(out, "{name:<8} {}", info.description)?;
        for (key, value) in info.properties {
            writeln!(out, "{:<8}   {key}: {value}", "")?;
        }
    }
    Ok(())
}
