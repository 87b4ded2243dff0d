//! A `tracing` layer that marks each step as an ITT task of its thread. Compiled only with the feature `ittapi`.
//!
//! The layer is active only while a profiler collects data. The profiler sets an environment variable to the path of its library, and the
//! ITT API reads this variable to load the library. Without a profiler, the layer has no cost.

use std::cell::RefCell;

use ittapi::{Domain, Task};
use tracing::field::{Field, Visit};
use tracing::{Subscriber, span};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::super::trace::Trace;

/// Environment variable that a collecting profiler sets.
const COLLECTOR: &str = if cfg!(target_pointer_width = "64") { "INTEL_LIBITTNOTIFY64" } else { "INTEL_LIBITTNOTIFY32" };

/// Returns the layer; `None` if no profiler collects data.
pub(in crate::cli) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> Option<impl Layer<S>> {
    std::env::var_os(COLLECTOR).map(|_| Tasks.with_filter(filter_fn(Trace::wants)))
}

struct Tasks;

thread_local! {
    /// ITT has one domain per name. The crate's handle of a domain is not `Send`, so each thread has its own handle, which takes eight
    /// bytes.
    static DOMAIN: &'static Domain = Box::leak(Box::new(Domain::new("roiflow")));
    /// Open tasks of this thread, innermost last.
    static OPEN: RefCell<Vec<(span::Id, Task<'static>)>> = const { RefCell::new(Vec::new()) };
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Tasks {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut step = StepName(None);
        attributes.record(&mut step);
        if let (Some(span), StepName(Some(_))) = (context.span(id), &step) {
            span.extensions_mut().insert(step);
        }
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        // Runs and frames move between threads, so only steps are tasks.
        if let Some(StepName(Some(step))) = span.extensions().get() {
            let task = Task::begin(DOMAIN.with(|domain| *domain), step.as_str());
            OPEN.with_borrow_mut(|open| open.push((id.clone(), task)));
        }
    }

    fn on_exit(&self, id: &span::Id, _context: Context<'_, S>) {
        OPEN.with_borrow_mut(|open| {
            if open.last().is_some_and(|(entered, _)| entered == id) {
                open.pop();
            }
        });
    }
}

/// The name of the step, from the field `step` of a span; `None` if the span has no such field.
struct StepName(Option<String>);

impl Visit for StepName {
    fn record_str(&mut self, field: &Field, value: &str) {
        // ITT needs the name as a C string, which cannot contain NUL.
        if field.name() == "step" && !value.contains('\0') {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
