//! `roiflow devices`: lists the devices that can run models, and why other devices are unavailable.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::terminal::{self, OneLine};
use crate::devices;
use crate::runtime::device::DeviceInfo;

/// Arguments of `roiflow devices`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: &Args) -> anyhow::Result<()> {
    let devices = devices::core().devices();
    if args.json {
        // The JSON writer escapes control characters itself.
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &devices.iter().map(as_json).collect::<Value>())?;
        writeln!(out)?;
        return Ok(());
    }
    let mut out = terminal::stdout();
    let width = devices.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, info) in devices {
        writeln!(out, "{:<width$}  {}", OneLine(&name).to_string(), OneLine(&info.description))?;
        for (key, value) in info.properties {
            writeln!(out, "{:<width$}    {key}: {}", "", OneLine(&value))?;
        }
        if let Some(missing) = info.missing {
            writeln!(out, "{:<width$}    not available: {}", "", OneLine(&missing.reason))?;
            if let Some(command) = missing.install {
                writeln!(out, "{:<width$}    install it with: {command}", "")?;
            }
        }
    }
    Ok(())
}

fn as_json((name, info): &(String, DeviceInfo)) -> Value {
    let properties: Map<_, _> = info.properties.iter().map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))).collect();
    let mut device = json!({
        "name": name,
        "description": info.description,
        "available": info.missing.is_none(),
        "properties": properties,
    });
    if let Some(missing) = &info.missing {
        device["reason"] = Value::from(missing.reason.as_str());
        device["install"] = Value::from(missing.install);
    }
    device
}
