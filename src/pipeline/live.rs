//! Changes of a plan that its running pipeline takes: properties that elements allow to change in PLAYING.
//!
//! Such a change loses no frame, and works with any input. All other changes need a new pipeline (`life`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use gst::prelude::*;
use gstreamer as gst;

use super::plan::Assignment;
use super::{Input, Plan, properties};

/// A property that a running element gets.
#[derive(Debug)]
pub(super) struct Change {
    element: String,
    property: String,
    /// The value as text; `None`: the default of the element.
    value: Option<String>,
}

/// The changes of a pipeline that were not applied yet, in order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Mutex<Vec<Change>>,
    /// Held while changes are applied, so that threads apply them in order.
    applying: Mutex<()>,
}

/// Returns the properties in which two plans differ. `None` if they also differ in something that a running pipeline does not take.
pub(super) fn changes(before: &Plan, after: &Plan) -> Option<Vec<Change>> {
    let alone = |plan: &Plan| Plan { assignments: Vec::new(), ..plan.clone() };
    if alone(before) != alone(after) {
        return None;
    }
    let (before, values) = (by_property(&before.assignments), by_property(&after.assignments));
    let names: BTreeSet<_> = before.keys().chain(values.keys()).collect();
    let different = names.into_iter().filter(|name| before.get(*name) != values.get(*name));
    different.map(|name| change(after, *name, values.get(name).copied())).collect()
}

impl Plan {
    /// Whether a running pipeline of this plan takes the values of another plan, without a new pipeline.
    pub fn takes(&self, other: &Self) -> bool {
        changes(self, other).is_some()
    }

    /// Whether a running stream of this plan can continue with another plan, see [`PipelineHandle::change`](super::PipelineHandle::change).
    pub fn can_continue_with(&self, other: &Self) -> bool {
        let have_addresses = matches!((&self.input, &other.input), (Input::Uri(_), Input::Uri(_)));
        have_addresses && other.can_restart() || self.takes(other)
    }
}

fn by_property(assignments: &[Assignment]) -> BTreeMap<(&str, &str), &str> {
    assignments.iter().map(|Assignment { element, property, value }| ((&**element, &**property), &**value)).collect()
}

/// Returns the change of a property to a value, or to the default of the element. `None` if the property cannot change in PLAYING.
fn change(plan: &Plan, (element, property): (&str, &str), value: Option<&str>) -> Option<Change> {
    let factory = plan.elements.iter().find(|known| known.name == element)?.factory.clone();
    let pspec = properties::find(&gst::ElementFactory::find(&factory)?, element, property).ok()?;
    if !pspec.flags().contains(gst::PARAM_FLAG_MUTABLE_PLAYING) {
        return None;
    }
    if let Some(value) = value {
        properties::value(&factory, element, &pspec, value).ok()?;
    }
    Some(Change { element: element.to_owned(), property: property.to_owned(), value: value.map(str::to_owned) })
}

impl Pending {
    pub(super) fn add(&self, changes: Vec<Change>) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).extend(changes);
    }

    /// Sets the properties on the elements of the pipeline. May read files.
    pub(super) fn apply(&self, pipeline: &gst::Pipeline) {
        let _in_order = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        for Change { element: name, property, value } in changes {
            // The pipeline was built from the same description, so it has the element, and the value was checked.
            let Some(element) = pipeline.by_name(&name) else { continue };
            let (Some(pspec), Some(factory)) = (element.find_property(&property), element.factory()) else { continue };
            let value = match &value {
                Some(value) => properties::value(&factory.name(), &name, &pspec, value),
                None => Ok(pspec.default_value().clone()),
            };
            match value {
                Ok(value) => element.set_property_from_value(&property, &value),
                Err(error) => tracing::warn!("a change of a running element is ignored: {error}"),
            }
        }
    }
}
