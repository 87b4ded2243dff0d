//! The tracing span of a run. The target of the span is `roiflow::trace`. The fields of the span are the request, the name of the request,
//! the number of the run, the frame, the model, the device and the outcome.

use tracing::field::Empty;
use tracing::{Level, Metadata, Span, span_enabled, trace_span};

use super::ErrorKind;
use super::steps::Body;

/// Opens the span of a run, inside the current span of the thread that starts the run. If a callback or step of an earlier run starts this
/// run, the span has no parent, because this run outlives the earlier run.
pub(super) fn of_run(body: &Body, request: u64, name: Option<&str>) -> Span {
    if !span_enabled!(target: "roiflow::trace", Level::TRACE) {
        return Span::none();
    }
    let (run, frame, model, device) = (body.run, body.io.frame, &*body.model.name, &*body.model.device);
    let is_own = |metadata: &Metadata<'_>| metadata.target() == "roiflow::trace" && matches!(metadata.name(), "step" | "callback");
    match Span::current().metadata().is_some_and(is_own) {
        true => {
            trace_span!(target: "roiflow::trace", parent: None, "run", request, run, frame, name, model, device, outcome = Empty)
        }
        false => trace_span!(target: "roiflow::trace", "run", request, run, frame, name, model, device, outcome = Empty),
    }
}

/// Ends the span of a run. Records the outcome as `ok`, `canceled`, or `failed: ` with the error.
pub(super) fn end_run(body: &mut Body) {
    let span = std::mem::replace(&mut body.span, Span::none());
    if span.is_disabled() {
        return;
    }
    match &body.outcome {
        Ok(()) => span.record("outcome", "ok"),
        Err(error) if error.kind() == ErrorKind::Canceled => span.record("outcome", "canceled"),
        Err(error) => span.record("outcome", format!("failed: {error}")),
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, OnceLock, mpsc};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Subscriber, info_span};
    use tracing_subscriber::layer::{Context, SubscriberExt as _};
    use tracing_subscriber::registry::LookupSpan;
    use tracing_subscriber::{Layer, Registry};

    use crate::executor::{Inline, Pool};
    use crate::null::{NullDevice, Script};
    use crate::tensor::ElementType;
    use crate::{CompiledModel, Config, Core, Error, ErrorKind, Model, ModelInfo, PipelineStep, Port};

    /// A closed span. `begin` and `end` are its positions in the sequence of all opened and closed spans of the process.
    #[derive(Debug, Clone, Default)]
    struct Seen {
        name: &'static str,
        parent: Option<&'static str>,
        fields: BTreeMap<&'static str, String>,
        begin: usize,
        end: usize,
    }

    impl Visit for Seen {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
        }
    }

    impl Seen {
        fn field(&self, name: &str) -> &str {
            self.fields.get(name).map_or("", |value| value)
        }
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<(usize, Vec<Seen>)>>);

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Kept {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            let span = context.span(id).unwrap();
            let mut state = self.0.lock().unwrap();
            state.0 += 1;
            let mut seen = Seen { name: span.name(), parent: span.parent().map(|parent| parent.name()), begin: state.0, ..Seen::default() };
            attributes.record(&mut seen);
            span.extensions_mut().insert(seen);
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
            values.record(context.span(id).unwrap().extensions_mut().get_mut::<Seen>().unwrap());
        }

        fn on_close(&self, id: Id, context: Context<'_, S>) {
            let mut seen = context.span(&id).unwrap().extensions().get::<Seen>().unwrap().clone();
            let mut state = self.0.lock().unwrap();
            state.0 += 1;
            seen.end = state.0;
            state.1.push(seen);
        }
    }

    /// Returns the closed spans of a request. The subscriber is global, so `kept` also has the spans that other tests opened.
    fn spans_of(request: u64) -> Vec<Seen> {
        let request = request.to_string();
        kept().0.lock().unwrap().1.iter().filter(|seen| seen.field("request") == request).cloned().collect()
    }

    fn kept() -> &'static Kept {
        static KEPT: OnceLock<Kept> = OnceLock::new();
        KEPT.get_or_init(|| {
            let kept = Kept::default();
            tracing::subscriber::set_global_default(Registry::default().with(kept.clone())).expect("no other test sets one");
            kept
        })
    }

    fn compile(script: Script) -> CompiledModel {
        let mut core = Core::new();
        core.register(Arc::new(NullDevice::new(Arc::new(script))));
        let port = |name| Port::new(name, ElementType::F32, [1, 4]);
        let info = ModelInfo { inputs: vec![port("x")], outputs: vec![port("y")], ..ModelInfo::default() };
        core.compile_model(&Model::from_ports(info), "NULL", &Config::default()).unwrap()
    }

    #[test]
    fn a_run_is_in_the_span_of_its_caller_and_says_how_it_ended() {
        kept();
        let script = Script::computing(|_, cancel| cancel.check());
        let model = compile(Script { executor: Some(Arc::new(Inline)), ..script });
        let request = model.create_infer_request().unwrap();
        request.set_name("front door");
        info_span!("handler").in_scope(|| request.infer(()).unwrap());
        request.append_step("fails", |_| Err(Error::new(ErrorKind::Device, "no more"))).unwrap();
        request.infer(()).unwrap_err();
        let spans = spans_of(request.id());
        let runs: Vec<&Seen> = spans.iter().filter(|seen| seen.name == "run").collect();
        assert_eq!(runs.iter().map(|run| run.parent).collect::<Vec<_>>(), [Some("handler"), None]);
        let said = |field| runs.iter().map(|run| run.field(field)).collect::<Vec<_>>();
        assert_eq!((said("name"), said("device"), said("run")), (vec!["front door"; 2], vec!["NULL"; 2], vec!["1", "2"]));
        assert_eq!((said("model"), said("outcome")), (vec![model.name(); 2], vec!["ok", "failed: no more"]));
        assert!(spans.iter().filter(|seen| seen.name == "step").all(|step| step.parent == Some("run")));
    }

    #[test]
    fn a_run_that_a_callback_starts_is_in_no_span() {
        kept();
        let model = compile(Script { executor: Some(Arc::new(Inline)), ..Script::default() });
        let request = model.create_infer_request().unwrap();
        let mut n_runs = 0;
        request
            .set_callback(move |request, _| {
                n_runs += 1;
                if n_runs < 3 {
                    request.start_async(()).unwrap();
                }
            })
            .unwrap();
        info_span!("handler").in_scope(|| request.start_async(()).unwrap());
        request.wait().unwrap();
        let parents: Vec<_> = spans_of(request.id()).iter().filter(|seen| seen.name == "run").map(|seen| seen.parent).collect();
        assert_eq!(parents, [Some("handler"), None, None]);
    }

    /// Two requests use the same two executors. While the first request runs its step `decode`, the second request runs its step `prepare`.
    #[test]
    fn stages_of_a_pipeline_overlap_in_the_trace() {
        kept();
        let model = compile(Script { executor: Some(Arc::new(Inline)), ..Script::default() });
        let (preparing, decoding) = (Arc::new(Pool::new("prepare", 1).unwrap()), Arc::new(Pool::new("decode", 1).unwrap()));
        let requests = [0, 1].map(|_| model.create_infer_request().unwrap());
        let (decodes, is_decoding) = mpsc::channel();
        let (prepares, is_preparing) = mpsc::channel();
        let (mut is_decoding, mut is_preparing) = (Some(is_decoding), Some(is_preparing));
        for (request_idx, request) in requests.iter().enumerate() {
            // Each of the two steps waits until the other one has begun, so the test passes only if they overlap.
            let (decodes, prepares) = (decodes.clone(), prepares.clone());
            let waits_to_prepare = (request_idx == 1).then(|| is_decoding.take().unwrap());
            let waits_to_decode = (request_idx == 0).then(|| is_preparing.take().unwrap());
            let prepare = PipelineStep::new("prepare", preparing.clone(), move |_| {
                if let Some(is_decoding) = &waits_to_prepare {
                    is_decoding.recv().unwrap();
                    prepares.send(()).unwrap();
                }
                Ok(())
            });
            let decode = PipelineStep::new("decode", decoding.clone(), move |_| {
                if let Some(is_preparing) = &waits_to_decode {
                    decodes.send(()).unwrap();
                    is_preparing.recv().unwrap();
                }
                Ok(())
            });
            let steps = [prepare].into_iter().chain(request.pipeline().unwrap()).chain([decode]);
            request.set_pipeline(steps.collect()).unwrap();
        }
        requests.iter().for_each(|request| request.start_async(()).unwrap());
        requests.iter().for_each(|request| request.wait().unwrap());
        let step = |request_idx: usize, name: &str| {
            let spans = spans_of(requests[request_idx].id());
            spans.into_iter().find(|seen| seen.field("step") == name).unwrap()
        };
        let (decode, prepare) = (step(0, "decode"), step(1, "prepare"));
        assert!(decode.begin < prepare.end && prepare.begin < decode.end, "{decode:?} {prepare:?}");
        let names: Vec<_> = requests[0].step_times().unwrap().iter().map(|step| step.name.to_string()).collect();
        assert_eq!((names.first().map(String::as_str), names.last().map(String::as_str)), (Some("prepare"), Some("decode")));
    }
}
