//! Shipped pipeline descriptions, and errors of invalid ones.

use std::path::{Path, PathBuf};

use roiflow::frame::{Frame, Outcome, PixelFormat, Size};
use roiflow::pipeline::{ErrorKind, Event, Input, Interrupt, Outputs, Plan, Spec, Stream};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Returns a description with the tiny models: finds a colored rectangle and classifies its color.
pub fn colors() -> Spec {
    let text = r#"
        version = 1
        name = "colors"
        description = "Finds a colored rectangle and names its color."
        [parameters.detector]
        type = "path"
        default = "../assets/tiny/rectangle.onnx"
        [parameters.color]
        type = "path"
        default = "../assets/tiny/color.onnx"
        [parameters.nireq]
        type = "integer"
        default = 2
        [pipeline]
        graph = """{source} ! roidetect name=detect model={detector} nireq={nireq} ! roiclassify name=color model={color} ! {json} ! {video}"""
    "#;
    Spec::parse(text, &root().join("pipelines/colors.toml")).unwrap()
}

/// Returns a black image with a rectangle.
fn picture(size: Size, x: usize, y: usize, width: usize, height: usize, color: [u8; 3]) -> Frame {
    let mut pixels = vec![0; size.width as usize * size.height as usize * 3];
    for row in y..y + height {
        for column in x..x + width {
            let at = (row * size.width as usize + column) * 3;
            pixels[at..at + 3].copy_from_slice(&color);
        }
    }
    Frame::from_packed(PixelFormat::Rgb, size, &pixels).unwrap()
}

#[test]
fn shipped_descriptions_parse_and_resolve() {
    let mut n_found = 0;
    // The command also reads the descriptions of the benchmarks.
    let entries = ["pipelines", "tests/bench/pipelines"].map(|folder| std::fs::read_dir(root().join(folder)).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        let spec = Spec::read(&path).unwrap();
        assert!(!spec.comment.is_empty(), "{}: a description begins with its purpose and requirements", path.display());
        let required = spec.file.parameters.iter().filter(|(_, parameter)| parameter.default.is_none());
        let set: Vec<(String, String)> = required.map(|(name, _)| (name.clone(), "x.onnx".to_owned())).collect();
        Plan::resolve(&spec, &set, Input::Test(1), Outputs::default()).unwrap();
        n_found += 1;
    }
    assert!(n_found >= 6);
}

#[test]
fn documented_description_resolves() {
    let page = include_str!("../../docs/command-line.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let spec = Spec::parse(example, Path::new("example.toml")).unwrap();
    let set = [("model".to_owned(), "x.onnx".to_owned())];
    let plan = Plan::resolve(&spec, &set, Input::Test(1), Outputs::default()).unwrap();
    assert_eq!(plan.elements.iter().map(|element| &*element.factory).collect::<Vec<_>>(), ["roidetect", "roitrack", "roioverlay"]);
}

#[test]
fn plan_lists_devices_of_its_models() {
    let mut spec = Spec::read(&root().join("pipelines/faces.toml")).unwrap();
    let devices = |spec: &Spec, set: &[(&str, &str)]| {
        let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let plan = Plan::resolve(spec, &set, Input::Test(1), Outputs::default()).unwrap();
        plan.devices().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(devices(&spec, &[]), [Some("AUTO".to_owned())]);
    assert_eq!(devices(&spec, &[("device", "NULL")]), [Some("NULL".to_owned())]);
    spec.file.pipeline.graph = "{source} ! roidetect model=a.onnx ! videoconvert ! {video}".to_owned();
    assert_eq!(devices(&spec, &[]), [None], "the element's default");
    spec.file.pipeline.graph = "{source} ! roidetect model=a.onnx device=CPU ! {video}".to_owned();
    assert_eq!(devices(&spec, &[]), [Some("CPU".to_owned())], "set in the graph");
    spec.file.pipeline.graph = "{source} ! roidetect model=a.onnx ! roiclassify model=b.onnx device=\"NULL.x\" ! {video}".to_owned();
    assert_eq!(devices(&spec, &[]), [None, Some("NULL.x".to_owned())]);
}

#[test]
fn drawing_is_disabled_without_video_output() {
    let faces = Spec::read(&root().join("pipelines/faces.toml")).unwrap();
    let of = |spec: &Spec, outputs: Outputs| {
        let plan = Plan::resolve(spec, &[], Input::Test(1), outputs).unwrap();
        !plan.assignments.iter().any(|set| set.element.starts_with("roioverlay") && (&*set.property, &*set.value) == ("draw", "false"))
    };
    let draws = |outputs: Outputs| of(&faces, outputs);
    assert!(!draws(Outputs { json: Some("-".into()), ..Outputs::default() }));
    assert!(draws(Outputs { video: Some("x.mp4".into()), ..Outputs::default() }));
    assert!(draws(Outputs { show: true, ..Outputs::default() }));
    assert!(draws(Outputs { application: true, ..Outputs::default() }));
    let mut shown_elsewhere = faces.clone();
    shown_elsewhere.file.pipeline.graph = "{source} ! roioverlay ! tee name=t ! intervideosink t. ! {video}".to_owned();
    assert!(of(&shown_elsewhere, Outputs::default()), "foreign elements may show the frames");
}

#[test]
fn application_pushes_frames_and_receives_results() {
    let stream = Stream::open(&colors(), &[]).unwrap();
    let sender = stream.sender();
    let feeder = std::thread::spawn(move || {
        for idx in 0..20_u64 {
            // The size changes, as with images of a folder.
            let size = Size::new(64 + (idx % 3) as u32 * 64, 64 + (idx % 2) as u32 * 64);
            let scale = (size.width as usize / 64, size.height as usize / 64);
            let color = if idx % 2 == 0 { [255, 0, 0] } else { [0, 0, 255] };
            let frame = picture(size, 8 * scale.0, 16 * scale.1, 24 * scale.0, 32 * scale.1, color);
            sender.push(&frame, Some(std::time::Duration::from_millis(idx * 40))).unwrap();
        }
        sender.end().unwrap();
    });
    let frames: Vec<_> = stream.collect::<Result<_, _>>().unwrap();
    feeder.join().unwrap();
    assert_eq!(frames.len(), 20);
    for (idx, frame) in frames.iter().enumerate() {
        assert_eq!(frame.pts, Some(std::time::Duration::from_millis(idx as u64 * 40)));
        let [found] = &*frame.results.detections else { panic!("frame {idx}: {:?}", frame.results) };
        let size = frame.results.size;
        let (sx, sy) = (size.width as f32 / 64.0, size.height as f32 / 64.0);
        for (got, expected) in
            [(found.rect.x, 8.0 * sx), (found.rect.y, 16.0 * sy), (found.rect.width, 24.0 * sx), (found.rect.height, 32.0 * sy)]
        {
            assert!((got - expected).abs() <= 2.0 * sx.max(sy), "frame {idx}: {:?}", found.rect);
        }
        let Outcome::Label { label, .. } = &found.classifications[0].outcome else { panic!("{found:?}") };
        assert_eq!(label.as_deref(), Some(if idx % 2 == 0 { "red" } else { "blue" }));
    }
}

#[test]
fn dropping_a_stream_ends_it() {
    let stream = Stream::open(&colors(), &[]).unwrap();
    let sender = stream.sender();
    let feeder = std::thread::spawn(move || {
        let frame = picture(Size::new(64, 64), 8, 8, 20, 20, [0, 255, 0]);
        while sender.push(&frame, None).is_ok() {}
    });
    let mut stream = stream;
    stream.next().unwrap().unwrap();
    drop(stream);
    feeder.join().unwrap();
}

#[test]
fn interrupt_drains_the_stream() {
    let plan = Plan::resolve(&colors(), &[], Input::Test(1_000_000), Outputs::default()).unwrap();
    let interrupt = Interrupt::default();
    let asked = interrupt.clone();
    let ending = roiflow::pipeline::run(&plan, &interrupt, move |event| {
        if matches!(event, Event::Progress(progress) if progress.n_frames > 0) {
            asked.interrupt();
        }
    });
    let ending = ending.unwrap();
    assert!(ending.interrupted && ending.stats.n_frames > 0);
    assert_eq!(ending.stats.n_dropped, 0);
}

#[test]
fn parameter_values_are_never_parsed_as_graph() {
    let folder = std::env::temp_dir().join(format!("roiflow-{}-a b\"! c", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["rectangle.onnx", "rectangle.toml"] {
        std::fs::copy(root().join("assets/tiny").join(name), folder.join(name)).unwrap();
    }
    let set = vec![("detector".to_owned(), folder.join("rectangle.onnx").to_str().unwrap().to_owned())];
    let plan =
        Plan::resolve(&colors(), &set, Input::Test(3), Outputs { json: Some(folder.join("o.jsonl")), ..Outputs::default() }).unwrap();
    let ending = roiflow::pipeline::run(&plan, &Interrupt::default(), |_| ()).unwrap();
    assert_eq!(ending.stats.n_frames, 3);
    assert_eq!(std::fs::read_to_string(folder.join("o.jsonl")).unwrap().lines().count(), 3);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn description_errors_have_place_and_cause() {
    #[derive(Debug)]
    struct Case(&'static str, &'static str, &'static [&'static str]);
    let good = "version = 1\nname = \"n\"\ndescription = \"d\"\n[parameters.model]\ntype = \"path\"\n[pipeline]\ngraph = \"{source} ! roidetect model={model} ! {video}\"\n";
    let cases = [
        Case("version = 1", "version = 3", &["version = 1", "3"]),
        Case("name = \"n\"", "nme = \"n\"", &["nme", "line 2"]),
        Case("type = \"path\"", "type = \"pth\"", &["pth", "path"]),
        Case("model={model}", "model={modl}", &["{modl}", "did you mean `model`"]),
        Case("model={model}", "model=a{model}", &["whole value"]),
        Case("{source} ! ", "", &["{source}"]),
        Case("roidetect", "nosuchelement", &["nosuchelement"]),
        Case("model={model}", "nosuch={model}", &["nosuch", "roidetect"]),
    ];
    for case in cases {
        let text = good.replace(case.0, case.1);
        assert_ne!(text, good, "{case:?}");
        let said = Spec::parse(&text, Path::new("bad.toml"))
            .and_then(|spec| Plan::resolve(&spec, &[("model".into(), "m.onnx".into())], Input::Test(1), Outputs::default()))
            .and_then(|plan| roiflow::pipeline::run(&plan, &Interrupt::default(), |_| ()))
            .unwrap_err()
            .to_string();
        assert!(case.2.iter().all(|part| said.contains(part)), "{case:?}: {said}");
    }
    let spec = Spec::parse(good, Path::new("good.toml")).unwrap();
    let missing = Plan::resolve(&spec, &[], Input::Test(1), Outputs::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Usage);
    assert!(missing.to_string().contains("--set model=PATH"), "{missing}");
    let vehicles = Spec::read(&root().join("pipelines/vehicles.toml")).unwrap();
    let missing = Plan::resolve(&vehicles, &[], Input::Test(1), Outputs::default()).unwrap_err().to_string();
    for part in ["`detector`", "yolox_nano", "`classifier`", "vehicle-attributes", "--set classifier=PATH --set detector=PATH"] {
        assert!(missing.contains(part), "all missing parameters must be listed with their help: {missing}");
    }
    let unknown = Plan::resolve(&spec, &[("mdel".into(), "x".into())], Input::Test(1), Outputs::default()).unwrap_err();
    assert!(unknown.to_string().contains("did you mean `model`"), "{unknown}");
    let nireq = Plan::resolve(&colors(), &[("nireq".into(), "two".into())], Input::Test(1), Outputs::default()).unwrap_err();
    assert!(nireq.to_string().contains("integer") && nireq.to_string().contains("two"), "{nireq}");
}
