//! The C API: results of a buffer, null and invalid arguments, and the example programs in C and Python.

use std::ffi::{CStr, c_char};
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Output};
use std::ptr;

use gstreamer as gst;
use roiflow::elements::capi::*;
use roiflow::elements::meta;
use roiflow::frame::{Classification, Detection, ObjectId, Outcome, Rect, ScoredLabel, Size};

use crate::harness::{Folder, built_plugin, face, init, results, tiny};

#[path = "../../examples/probe.rs"]
#[allow(dead_code, reason = "the test calls the program without its main function")]
mod probe;

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: 40.25, y: 60.5, width: 80.5, height: 100.25 };

/// Results of the C API, freed on drop.
struct Results(*mut RoiflowResults);

impl Results {
    fn of(buffer: &gst::BufferRef, size: Size) -> Self {
        // SAFETY: `buffer` is a valid buffer that the caller borrows, and nothing else changes it during the call.
        Self(unsafe { roiflow_results_from_buffer(buffer.as_ptr().cast_mut(), size.width, size.height) })
    }

    fn n_objects(&self) -> usize {
        // SAFETY: `self.0` is null or comes from `roiflow_results_from_buffer`, and is freed only in `drop`.
        unsafe { roiflow_results_n_objects(self.0) }
    }

    fn object(&self, object_idx: usize) -> Option<RoiflowObject> {
        let mut object = std::mem::MaybeUninit::uninit();
        // SAFETY: the results are not freed yet, and `object` may be written. The function has initialized it if it returned 1.
        unsafe { (roiflow_results_get_object(self.0, object_idx, object.as_mut_ptr()) == 1).then(|| object.assume_init()) }
    }

    fn attribute(&self, object_idx: usize, attribute_idx: usize) -> Option<RoiflowAttribute> {
        let mut attribute = std::mem::MaybeUninit::uninit();
        // SAFETY: as above.
        unsafe {
            (roiflow_results_get_attribute(self.0, object_idx, attribute_idx, attribute.as_mut_ptr()) == 1).then(|| attribute.assume_init())
        }
    }

    fn json(&self) -> serde_json::Value {
        // SAFETY: as above.
        serde_json::from_str(text(unsafe { roiflow_results_json(self.0) }).unwrap()).unwrap()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        // SAFETY: the results are freed only here.
        unsafe { roiflow_results_free(self.0) }
    }
}

fn text<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: the pointer is not null here. It is a C string that belongs to results, which are not freed yet.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap())
}

fn buffer(detections: Vec<Detection>) -> gst::Buffer {
    init();
    let mut buffer = gst::Buffer::new();
    let writable = buffer.get_mut().unwrap();
    writable.set_pts(gst::ClockTime::from_nseconds(7));
    meta::attach(writable, results(SIZE, 3, detections));
    buffer
}

#[test]
fn c_api_returns_objects_attributes_and_json_of_buffer() {
    let said = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
    let hat = ScoredLabel { label_id: 4, label: Some("hat".into()), confidence: 0.5 };
    let outside = face(5, Rect { x: 900.0, ..BOX });
    let mut person = Detection { label: Some("per\0son".into()), track: Some(ObjectId(12)), ..face(6, BOX) };
    person.classifications.push(said("clothes", Outcome::Labels(vec![hat])));
    person.classifications.push(said("identity", Outcome::Tensor { shape: vec![2], data: [0.5, 1.0].into() }));
    let child = Detection { parent: Some(person.id), label: None, classifications: vec![], ..face(7, BOX) };
    let buffer = buffer(vec![outside, person, child]);
    let read = Results::of(&buffer, SIZE);
    // The results stay valid after the buffer is freed.
    drop(buffer);

    assert_eq!(read.n_objects(), 2, "objects outside the frame are left out");
    let [person, child] = [0, 1].map(|object_idx| read.object(object_idx).unwrap());
    assert_eq!([person.x, person.y, person.width, person.height, person.confidence], [40.25, 60.5, 80.5, 100.25, 0.75]);
    assert_eq!((text(person.label), person.label_id, person.track_id, person.parent), (Some("person"), 1, 12, -1));
    assert_eq!((text(child.label), child.track_id, child.parent, child.n_attributes), (None, 0, 0, 0));
    let attributes: Vec<_> = (0..person.n_attributes)
        .map(|attribute_idx| {
            let said = read.attribute(0, attribute_idx).unwrap();
            (text(said.name).unwrap(), said.kind, text(said.label), said.label_id, said.confidence, said.value)
        })
        .collect();
    let expected = [
        ("gender", 1, Some("female"), 0, 0.5, 0.0),
        ("age", 2, None, 0, 0.0, 31.4),
        ("clothes", 1, Some("hat"), 4, 0.5, 0.0),
        ("identity", 0, None, 0, 0.0, 0.0),
    ];
    assert_eq!(attributes, expected);
    assert_eq!(text(read.attribute(0, 0).unwrap().model), Some("age-gender"));
    assert!(read.object(2).is_none() && read.attribute(0, 4).is_none() && read.attribute(2, 0).is_none());

    let json = read.json();
    assert_eq!((&json["frame"], &json["pts"], &json["stream"]), (&3.into(), &7.into(), &serde_json::Value::Null));
    let objects = json["objects"].as_array().unwrap();
    assert_eq!((objects.len(), &objects[0]["id"], &objects[1]["parent_id"]), (2, &12.into(), &1.into()));
    assert_eq!(objects[0]["identity"]["data"], serde_json::json!([0.5, 1.0]));
    // SAFETY: the results are not freed yet.
    assert_eq!(unsafe { [roiflow_results_json(read.0), roiflow_results_json(read.0)] }.map(text)[0].unwrap().lines().count(), 1);
}

#[test]
fn c_api_scales_results_to_given_frame_size() {
    let mut buffer = buffer(vec![face(7, Rect { x: 40.0, y: 60.0, width: 80.0, height: 100.0 })]);
    let x_in = |buffer: &gst::Buffer, size| {
        let read = Results::of(buffer, size);
        (read.object(0).unwrap().x, read.json()["resolution"]["width"].clone())
    };
    assert_eq!(x_in(&buffer, Size::default()), (40.0, 320.into()), "size at the time of attaching");
    // Simulates an element that scales the frame and its regions.
    let writable = buffer.get_mut().unwrap();
    let format = gstreamer_video::VideoFormat::Gray8;
    gstreamer_video::VideoMeta::add(writable, gstreamer_video::VideoFrameFlags::empty(), format, 640, 480).unwrap_err();
    writable.append_memory(gst::Memory::from_slice(vec![0; 640 * 480]));
    gstreamer_video::VideoMeta::add(writable, gstreamer_video::VideoFrameFlags::empty(), format, 640, 480).unwrap();
    assert_eq!(x_in(&buffer, Size::default()).1, 640, "size of the video meta");
    assert_eq!(x_in(&buffer, Size::new(160, 120)).1, 160);
}

#[test]
fn c_api_handles_null_and_empty_buffers() {
    init();
    assert_eq!(roiflow_abi_version(), ABI_VERSION);
    let caps = gst::Caps::new_any();
    let plain = gst::Buffer::new();
    let mut object = std::mem::MaybeUninit::uninit();
    // SAFETY: all pointers may be null, and an object that is not a buffer is a mini object.
    unsafe {
        assert!(roiflow_results_from_buffer(ptr::null_mut(), 4, 3).is_null());
        assert!(roiflow_results_from_buffer(caps.as_ptr().cast_mut().cast(), 4, 3).is_null(), "caps are not a buffer");
        assert!(roiflow_results_from_buffer(plain.as_ptr().cast_mut(), 4, 3).is_null(), "the buffer has no results");
        assert_eq!(roiflow_results_n_objects(ptr::null()), 0);
        assert_eq!(roiflow_results_get_object(ptr::null(), 0, object.as_mut_ptr()), 0);
        assert_eq!(roiflow_results_get_attribute(ptr::null(), 0, 0, ptr::null_mut()), 0);
        assert!(roiflow_results_json(ptr::null()).is_null());
        roiflow_results_free(ptr::null_mut());
    }
    let read = Results::of(&buffer(vec![face(7, BOX)]), SIZE);
    // SAFETY: the results are not freed yet; there is no output pointer.
    unsafe {
        assert_eq!(roiflow_results_get_object(read.0, 0, ptr::null_mut()), 0);
        assert_eq!(roiflow_results_get_attribute(read.0, 0, 0, ptr::null_mut()), 0);
    }
}

/// An object of the C API without a label, track and parent.
fn c_object(rect: Rect) -> RoiflowObject {
    let Rect { x, y, width, height } = rect;
    RoiflowObject { x, y, width, height, confidence: 0.5, label_id: 3, label: ptr::null(), track_id: 0, parent: -1, n_attributes: 9 }
}

#[test]
fn c_api_removes_and_adds_objects_and_attributes() {
    let outside = face(5, Rect { x: 900.0, ..BOX });
    let buffer = buffer(vec![outside, face(6, BOX), face(7, BOX)]);
    let pointer = buffer.as_mut_ptr();
    let texts = [c"dog", c"fur", c"brown", c"age"].map(CStr::as_ptr);
    let dog = RoiflowObject { label: texts[0], track_id: 4, parent: 0, ..c_object(Rect { x: 1.0, y: 2.0, width: 30.0, height: 40.0 }) };
    let fur = RoiflowAttribute { name: texts[1], model: ptr::null(), label: texts[2], kind: 1, label_id: 2, confidence: 0.25, value: 9.0 };
    let age = RoiflowAttribute { name: texts[3], model: texts[0], kind: 2, value: 7.5, ..fur };
    let mut added = 9;
    // SAFETY: the buffer is writable and used only here; objects, attributes and their texts are valid.
    let done = unsafe {
        [
            roiflow_buffer_remove_object(pointer, 320, 240, 0),
            roiflow_buffer_remove_object(pointer, 320, 240, 1),
            roiflow_buffer_add_object(pointer, 320, 240, &raw const dog, &raw mut added),
            roiflow_buffer_add_object(pointer, 320, 240, &c_object(Rect { x: f32::NAN, ..BOX }), &raw mut added),
            roiflow_buffer_add_object(pointer, 320, 240, &RoiflowObject { parent: 7, ..c_object(BOX) }, ptr::null_mut()),
            roiflow_buffer_add_attribute(pointer, 320, 240, 1, &raw const fur),
            roiflow_buffer_add_attribute(pointer, 0, 0, 1, &raw const age),
            roiflow_buffer_add_attribute(pointer, 320, 240, 2, &raw const age),
            roiflow_buffer_add_attribute(pointer, 320, 240, 1, &RoiflowAttribute { kind: 0, ..age }),
            roiflow_buffer_add_attribute(pointer, 320, 240, 1, &RoiflowAttribute { name: ptr::null(), ..age }),
        ]
    };
    assert_eq!((done, added), ([1, 0, 1, 0, 0, 1, 1, 0, 0, 0], 1));
    let read = Results::of(&buffer, SIZE);
    let [face, dog] = [0, 1].map(|object_idx| read.object(object_idx).unwrap());
    assert_eq!((read.n_objects(), text(face.label), face.n_attributes), (2, Some("face"), 2));
    assert_eq!((text(dog.label), dog.label_id, dog.track_id, dog.parent, dog.confidence), (Some("dog"), 3, 4, 0, 0.5));
    let [fur, age] = [0, 1].map(|attribute_idx| read.attribute(1, attribute_idx).unwrap());
    assert_eq!((text(fur.name), text(fur.model), text(fur.label), fur.confidence), (Some("fur"), Some("application"), Some("brown"), 0.25));
    assert_eq!((text(age.name), text(age.model), age.kind, age.value), (Some("age"), Some("dog"), 2, 7.5));
    assert_eq!(read.json()["frame"], 3, "the frame keeps its number");

    // SAFETY: as above; all functions allow null and buffers that are not writable.
    let refused = unsafe {
        let other = gst::ffi::gst_mini_object_ref(pointer.cast());
        let refused = [
            roiflow_buffer_remove_object(pointer, 320, 240, 0),
            roiflow_buffer_add_object(pointer, 320, 240, &c_object(BOX), ptr::null_mut()),
            roiflow_buffer_remove_object(ptr::null_mut(), 320, 240, 0),
            roiflow_buffer_add_object(ptr::null_mut(), 320, 240, ptr::null(), ptr::null_mut()),
            roiflow_buffer_add_attribute(ptr::null_mut(), 320, 240, 0, ptr::null()),
        ];
        gst::ffi::gst_mini_object_unref(other);
        refused
    };
    assert_eq!(refused, [0; 5]);
    let plain = gst::Buffer::new();
    // SAFETY: as above.
    let added = unsafe {
        [
            roiflow_buffer_remove_object(plain.as_mut_ptr(), 320, 240, 0),
            roiflow_buffer_add_object(plain.as_mut_ptr(), 0, 0, &c_object(BOX), ptr::null_mut()),
        ]
    };
    assert_eq!((added, plain.iter_meta::<gst::Meta>().count()), ([0, 0], 0), "a call that fails changes nothing");
    // SAFETY: as above.
    assert_eq!(unsafe { roiflow_buffer_add_object(plain.as_mut_ptr(), 320, 240, &c_object(BOX), ptr::null_mut()) }, 1);
    assert_eq!(Results::of(&plain, SIZE).n_objects(), 1);
    // SAFETY: null is allowed.
    assert!(unsafe { roiflow_probe_buffer(ptr::null_mut()) }.is_null());
}

/// Compiles a C program with the header and the libraries of `pkg-config`.
fn compile(source: &Path, program: &str, pkg_config_path: &str, packages: &[&str]) {
    let flags = Command::new("pkg-config").args(["--cflags", "--libs"]).args(packages).env("PKG_CONFIG_PATH", pkg_config_path).output();
    let flags = flags.unwrap();
    assert!(flags.status.success(), "{}", shown(&flags));
    let flags = String::from_utf8(flags.stdout).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o", program]).arg(source).args(flags.split_whitespace());
    let compiled = compiler.arg(format!("-I{}/include", env!("CARGO_MANIFEST_DIR"))).output().unwrap();
    assert!(compiled.status.success(), "{}", shown(&compiled));
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn c_structs_have_layout_of_header() {
    let folder = Folder::new("layout");
    let mut source = "#include <roiflow.h>\n#define IS(what, expected) _Static_assert((what) == (expected), #what)\n".to_owned();
    macro_rules! check {
        ($($kind:ident { $($field:ident),* })*) => {$(
            source += &format!("IS(sizeof({}), {});\n", stringify!($kind), size_of::<$kind>());
            $(source += &format!("IS(offsetof({0}, {1}), {2});\n", stringify!($kind), stringify!($field), offset_of!($kind, $field));)*
        )*};
    }
    check! {
        RoiflowObject { x, y, width, height, confidence, label_id, label, track_id, parent, n_attributes }
        RoiflowAttribute { name, model, label, kind, label_id, confidence, value }
    }
    let kinds = [
        ("OTHER", RoiflowAttributeKind::Other as i32),
        ("LABEL", RoiflowAttributeKind::Label as i32),
        ("VALUE", RoiflowAttributeKind::Value as i32),
    ];
    kinds.iter().for_each(|(kind, value)| source += &format!("IS(ROIFLOW_ATTRIBUTE_{kind}, {value});\n"));
    source += &format!("IS(ROIFLOW_ABI_VERSION, {ABI_VERSION});\nint main(void) {{ return 0; }}\n");
    folder.write("layout.c", source);
    compile(&folder.0.join("layout.c"), &folder.file("layout"), "", &["gstreamer-1.0"]);
}

/// Returns the graph of both example programs.
fn graph() -> String {
    format!(
        "videotestsrc num-buffers=2 pattern=red ! video/x-raw,format=RGB,width=320,height=240 ! roidetect model={} device=CPU ! \
         roitrack min-hits=1 ! roiclassify model={} device=CPU ! fakesink name=sink",
        tiny("rectangle.onnx"),
        tiny("color.onnx"),
    )
}

/// Runs an example with the installed plugin, and checks its output for each frame.
fn check_example(mut program: Command, plugins: &str, folder: &Folder) {
    let played = program.arg(graph()).env("GST_PLUGIN_PATH", plugins).env("GST_REGISTRY", folder.file("registry")).output().unwrap();
    assert!(played.status.success(), "{}", shown(&played));
    let printed = String::from_utf8(played.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    for (frame, n) in lines.chunks(2).zip(0..) {
        let [object, json] = frame else { unreachable!("pairs of an even number") };
        assert_eq!(*object, "rectangle 1.00 at 0,0 320x240 id=1 color=red (1.00)");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["frame"], &json["objects"][0]["color"]["label"]), (&n.into(), &"red".into()));
    }
}

#[test]
fn c_example_prints_results_of_installed_plugin() {
    let folder = Folder::new("c");
    // Use a folder without spaces in its name, because the shell splits the output of pkg-config at spaces.
    let place = std::env::temp_dir().join(format!("roiflow-c-{}", std::process::id()));
    let _removed_at_the_end = Folder(place.clone());
    let place = place.to_str().unwrap();
    let mut make = Command::new("make");
    make.current_dir(env!("CARGO_MANIFEST_DIR")).arg("install");
    make.args([format!("PREFIX={place}"), format!("PLUGIN_DIR={place}/plugins"), format!("PLUGIN={}", built_plugin().display())]);
    let installed = make.arg(format!("BINARY={}", built_plugin().display())).output().unwrap();
    assert!(installed.status.success(), "{}", shown(&installed));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c/results.c");
    compile(&source, &folder.file("results"), &format!("{place}/lib/pkgconfig"), &["roiflow"]);
    check_example(Command::new(folder.file("results")), &format!("{place}/plugins"), &folder);
}

/// Whether the system's Python has the bindings of GStreamer.
fn has_gi() -> bool {
    let has_gi = Command::new("/usr/bin/python3").args(["-c", "import gi; gi.require_version('Gst', '1.0')"]).output();
    let has_gi = has_gi.is_ok_and(|has_gi| has_gi.status.success());
    if !has_gi {
        eprintln!("skipped: no Python bindings of GStreamer; install python3-gi and gir1.2-gstreamer-1.0");
    }
    has_gi
}

/// The example programs in Rust, C and Python remove small objects.
#[test]
fn probe_examples_remove_objects_by_a_rule() {
    let folder = Folder::new("probe");
    std::fs::create_dir(folder.0.join("plugins")).unwrap();
    std::os::unix::fs::symlink(built_plugin(), folder.0.join("plugins/libgstroiflow.so")).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let library = built_plugin();
    let mut flags = Command::new("cc");
    flags.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o", &folder.file("probe")]).arg(examples.join("c/probe.c"));
    let gstreamer = Command::new("pkg-config").args(["--cflags", "--libs", "gstreamer-1.0"]).output().unwrap();
    flags.args(String::from_utf8(gstreamer.stdout).unwrap().split_whitespace());
    flags.arg(format!("-I{}/include", env!("CARGO_MANIFEST_DIR"))).arg(&library);
    flags.arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()));
    let compiled = flags.output().unwrap();
    assert!(compiled.status.success(), "{}", shown(&compiled));
    let mut programs = vec![None, Some(Command::new(folder.file("probe")))];
    if has_gi() {
        let mut python = Command::new("/usr/bin/python3");
        python.arg(examples.join("python/probe.py"));
        programs.push(Some(python));
    }
    for program in programs {
        let results = folder.file("o.jsonl");
        let line = format!(
            "videotestsrc num-buffers=2 ! video/x-raw,format=RGB,width=320,height=240 ! \
             roiattach name=filter rois=\"high:0,0,0.5,0.9;low:0.6,0.6,0.7,0.7;low:0,0,1,0.1\" ! roitrack ! roipublish address=\"{results}\" ! fakesink"
        );
        match program {
            None => probe::run(&line, 80.0).unwrap(),
            Some(mut program) => {
                program.args([&line, "80"]).env("GST_PLUGIN_PATH", folder.file("plugins")).env("GST_REGISTRY", folder.file("registry"));
                let played = program.output().unwrap();
                assert!(played.status.success(), "{program:?}: {}", shown(&played));
            }
        }
        for (line, n) in crate::harness::lines(&results).iter().zip(0..) {
            let labels: Vec<&str> = line["objects"].as_array().unwrap().iter().map(|object| object["roi_type"].as_str().unwrap()).collect();
            assert_eq!((labels, &line["frame"]), (vec!["high"], &n.into()));
        }
        assert_eq!(crate::harness::lines(&results).len(), 2);
    }
}

#[test]
fn python_example_prints_results_of_plugin() {
    if !has_gi() {
        return;
    }
    let folder = Folder::new("python");
    std::fs::create_dir(folder.0.join("plugins")).unwrap();
    std::os::unix::fs::symlink(built_plugin(), folder.0.join("plugins/libgstroiflow.so")).unwrap();
    let mut program = Command::new("/usr/bin/python3");
    program.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python/results.py"));
    check_example(program, &folder.file("plugins"), &folder);
}
