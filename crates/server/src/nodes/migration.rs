//! Seals the items of a group that were not sealed: of nodes without a key, or of an earlier version of roiflow, which encrypted only
//! descriptions.

use std::sync::Arc;
use std::time::Instant;

use roiflow_nodes::coordinator::{Change, Coordinator, Event, Item, REQUEST_TIMEOUT, Request, Ticket, call};
use roiflow_nodes::keys::Key as ItemKey;
use roiflow_nodes::types::{NodeRecord, Presence};
use roiflow_nodes::{StreamSpec, keys};

use super::descriptions::{Descriptions, Protection};
use super::key::{self, Key};
use super::sealed::{CHECK_KEY, Seal, is_sealed};

/// Seals the streams and the requests to drain of a group, and removes its other items that are not sealed: nodes make those again. Returns a
/// line of text for each item that was sealed.
///
/// # Errors
/// Returns an error if nodes run, the coordinator does not answer, or a description was encrypted with another key.
pub fn seal_group(coordinator: Box<dyn Coordinator>, key: Key, group: &str) -> Result<Vec<String>, String> {
    seal_items(coordinator, &Arc::new(key), group)
}

pub(super) fn seal_items(mut coordinator: Box<dyn Coordinator>, key: &Arc<Key>, group: &str) -> Result<Vec<String>, String> {
    let coordinator = &mut *coordinator;
    let seal = Seal::new(key.clone(), group);
    let failed = |item: &str, error: &dyn std::fmt::Display| format!("seal the item `{}` failed: {error}", item.escape_debug());
    let (sealed, plain): (Vec<Item>, Vec<Item>) = items(coordinator)?.into_iter().partition(|item| is_sealed(&item.value));
    let opened = |item: &Item| seal.open(&item.key, &item.value).map(|(_, value)| Item { value, ..item.clone() });
    if let Some(other) = sealed.iter().find(|item| opened(item).is_none()) {
        let found = "one that was sealed with another key or for another group. Name the --key and the --group of the nodes";
        return Err(failed(&other.key, &format_args!("expected items of this key, got {found}")));
    }
    let running: Vec<String> =
        plain.iter().cloned().chain(sealed.iter().filter_map(opened)).filter_map(|item| running_node(&item)).collect();
    if !running.is_empty() {
        let (found, advice) = (running.join(", "), "End them, wait 15 s, and try again");
        return Err(format!("seal the items of the group `{group}` failed: expected no node that runs, got {found}. {advice}"));
    }
    // All descriptions are read before the first change.
    let mut changes = Vec::new();
    for item in plain {
        match ItemKey::parse(&item.key) {
            Some(ItemKey::Stream(name)) => {
                let (value, was_encrypted) = stream(name, &item.value, key).map_err(|error| failed(&item.key, &error))?;
                let how = if was_encrypted { "its description was encrypted with this key" } else { "it was NOT encrypted, check it" };
                changes.push((item.clone(), Some(value), Some(format!("stream {name}: {how}"))));
            }
            Some(ItemKey::Drain(node)) => {
                changes.push((
                    item.clone(),
                    Some(item.value.clone()),
                    Some(format!("drain of the node {node}: it was NOT encrypted, check it")),
                ));
            }
            _ => changes.push((item, None, None)),
        }
    }
    let mut lines = Vec::new();
    for (item, value, line) in changes {
        let Item { key, revision, .. } = item;
        let request = match value {
            Some(value) => {
                let value = seal.seal(&key, revision, &value).map_err(|error| failed(&key, &error))?;
                Request::Update { key: key.clone(), revision, value, ttl: None }
            }
            None => Request::Delete { key: key.clone(), revision },
        };
        call(coordinator, request).map_err(|error| failed(&key, &error))?;
        lines.extend(line);
    }
    // Shows the key to nodes, also if the group has no streams.
    if !sealed.iter().any(|item| item.key == CHECK_KEY) {
        let value = seal.seal(CHECK_KEY, Default::default(), b"{}").map_err(|error| failed(CHECK_KEY, &error))?;
        call(coordinator, Request::Create { key: CHECK_KEY.to_owned(), value, ttl: None }).map_err(|error| failed(CHECK_KEY, &error))?;
    }
    Ok(lines)
}

/// Returns all items.
fn items(coordinator: &mut dyn Coordinator) -> Result<Vec<Item>, String> {
    coordinator.submit(Ticket(0), Request::Watch { prefix: String::new() });
    let (begin, mut items) = (Instant::now(), Vec::new());
    loop {
        let left = (REQUEST_TIMEOUT * 2).saturating_sub(begin.elapsed());
        match coordinator.poll(left) {
            Some(Event::Watch { change: Change::Put(item), .. }) => items.push(item),
            Some(Event::Watch { change: Change::Current, .. }) => return Ok(items),
            _ if left.is_zero() => {
                return Err("read the items of the group failed: the coordinator did not answer in time. Try again".to_owned());
            }
            _ => {}
        }
    }
}

/// Returns the name of a node that runs.
fn running_node(item: &Item) -> Option<String> {
    let name = item.key.strip_prefix(keys::NODES)?;
    let record: NodeRecord = serde_json::from_slice(&item.value).ok()?;
    (record.presence == Presence::Present).then(|| name.escape_debug().to_string())
}

/// Returns the item of a stream as this version writes it, and whether its description was encrypted with this key.
fn stream(name: &str, value: &[u8], key: &Key) -> Result<(Vec<u8>, bool), String> {
    let item: StreamSpec = serde_json::from_slice(value).map_err(|_| "expected a stream, got another value. Remove it".to_owned())?;
    let opened = match item.description.as_str().filter(|text| key::is_sealed(text)) {
        Some(sealed) => Some(key.open_description(name, sealed)?),
        None => None,
    };
    let description = match &opened {
        Some(text) => serde_json::from_str(text).map_err(|error| error.to_string())?,
        None => item.description,
    };
    // The other values are made again from the description, which was encrypted.
    let descriptions = Descriptions(Protection::Sealed);
    let spec = descriptions.read(name, &StreamSpec { description, ..item })?;
    if spec.name != name {
        return Err(format!("expected the description of the stream `{name}`, got that of another one. Remove it"));
    }
    let item = descriptions.write(&spec).map_err(|error| error.message)?;
    Ok((serde_json::to_vec(&item).map_err(|error| error.to_string())?, opened.is_some()))
}
