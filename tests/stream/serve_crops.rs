//! The latest crops of a stream over REST and on the page: the right pixels of the right frame, and nothing is encoded unless a client asks.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Folder;
use crate::serve::Served;
use crate::serve_page::Browser;

/// Starts a server with a stream of a red square that moves and is tracked. The square crosses the line `gate`.
fn served(folder: &Folder) -> Served {
    crate::harness::make_clip(&folder.file("clip.mp4"), 40, "mp4mux");
    let text = format!(
        "version = 1\nname = \"moving\"\ndescription = \"Tracks.\"\n[parameters.lines]\ntype = \"string\"\ndefault = \"gate:0.5,0.05,0.5,0.95\"\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU ! roitrack ! roianalytics lines={{lines}} ! {{json}} ! {{video}}\"\n",
        crate::harness::tiny("rectangle.onnx")
    );
    std::fs::write(folder.file("moving.toml"), text).unwrap();
    let server = Served::start(folder, &[]);
    let stream = json!({"name": "door", "pipeline": "moving", "input": "clip.mp4", "loop": true});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 10);
    server
}

fn n_crops(server: &Served) -> u64 {
    let (_, text) = server.send("GET", "/metrics", None);
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("roiflow_crops_total ")).unwrap_or_else(|| panic!("{text}"));
    line.parse().unwrap()
}

#[test]
fn crops_have_the_pixels_and_results_of_their_frames() {
    let folder = Folder::new("serve-crops");
    let server = served(&folder);
    assert_eq!(n_crops(&server), 0, "no client has asked");
    let begin = Instant::now();
    // A track is confirmed after some frames. Results are kept for 100 frames, so they still have the frame of a crop.
    let (crop, line) = loop {
        let (status, list) = server.json("GET", "/api/streams/door/crops?limit=5", None);
        assert_eq!(status, 200, "{list}");
        let (_, results) = server.json("GET", "/api/streams/door/results?limit=100", None);
        let crop = list["crops"].as_array().unwrap().iter().find(|crop| crop["track"].is_i64()).cloned();
        let line = crop.as_ref().and_then(|crop| results["results"].as_array().unwrap().iter().find(|line| line["frame"] == crop["frame"]));
        if let (Some(crop), Some(line)) = (crop, line) {
            break (crop, line.clone());
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{list}");
    };
    let object = line["objects"].as_array().unwrap().iter().find(|object| object["id"] == crop["track"]).unwrap();
    assert_eq!(crop["label"], object["detection"]["label"]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!((number(&crop["confidence"]) - number(&object["detection"]["confidence"])).abs() < 1e-3, "{crop} {object}");
    for edge in ["x_min", "y_min", "x_max", "y_max"] {
        let (of_crop, of_result) = (number(&crop["bounding_box"][edge]), number(&object["detection"]["bounding_box"][edge]));
        assert!((of_crop - of_result.clamp(0.0, 1.0)).abs() < 1e-3, "{edge}: {crop} {object}");
    }
    let (status, jpeg) = server.send("GET", crop["picture"].as_str().unwrap(), None);
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&jpeg));
    let picture = image::load_from_memory(&jpeg).unwrap().into_rgb8();
    let sides = [(picture.width(), "x_min", "x_max", 256.0), (picture.height(), "y_min", "y_max", 192.0)];
    for (side, low, high, size) in sides {
        let expected = (number(&crop["bounding_box"][high]) - number(&crop["bounding_box"][low])) * size;
        assert!((f64::from(side) - expected).abs() <= 2.0, "{side} pixels, expected {expected}");
    }
    let n_red = picture.pixels().filter(|pixel| pixel[0] > 150 && pixel[1] < 100 && pixel[2] < 100).count();
    let share = n_red as f64 / f64::from(picture.width() * picture.height());
    assert!(share > 0.85, "the crop shows the square: {share}");

    let (status, error) = server.json("GET", "/api/streams/door/crops/99999", None);
    assert_eq!((status, &error["error"]["code"]), (404, &"unknown_crop".into()));
    assert_eq!(server.json("GET", "/api/streams/other/crops", None).0, 404);
    assert_eq!(server.json("GET", "/api/streams/door/crops?limit=65", None).0, 400);
    // The cutting ends by itself: a second of frames passes without a crop.
    let begin = Instant::now();
    let n_cut = loop {
        let before = n_crops(&server);
        let frames = |view: &Value| view["frames"].as_u64().unwrap();
        let first = frames(&server.view("door"));
        server.wait_until("door", |view| frames(view) > first + 30);
        if n_crops(&server) == before {
            break before;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "crops are cut although no client asks");
    };
    assert!(n_cut > 0);
    // The earlier crops were dropped.
    let (_, list) = server.json("GET", "/api/streams/door/crops", None);
    assert!(list["crops"].as_array().unwrap().iter().all(|crop| crop["id"].as_u64().unwrap() > n_cut), "{list}");
}

#[test]
fn page_shows_crops_and_events_at_lines_with_their_crops() {
    let Some(browser) = Browser::start() else { return };
    let folder = Folder::new("serve-crops-page");
    let server = served(&folder);
    browser.open(&format!("http://{}/#/streams/door", server.address));
    let is_red = |selector: &str| {
        format!(
            "const image = [...document.querySelectorAll({selector:?})].find((image) => image.complete && image.naturalWidth > 8);
             if (!image) return false;
             const canvas = document.createElement('canvas');
             [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
             const context = canvas.getContext('2d');
             context.drawImage(image, 0, 0);
             const [red, green, blue] = context.getImageData(image.naturalWidth / 2, image.naturalHeight / 2, 1, 1).data;
             return red > 150 && green < 100 && blue < 100;"
        )
    };
    browser.wait_until(&is_red("#crops img"));
    browser.wait_until("return /rectangle \\d+, \\d+ %/.test(document.querySelector('#crops li').innerText)");
    browser.wait_until("return /line crossed: gate, (in|out)/.test(document.querySelector('#place-events')?.innerText ?? '')");
    browser.wait_until(&is_red("#place-events img"));
    // A picture that the server no longer has is not shown as broken.
    let shown = "const image = document.querySelector('#crops img');
        const after = (event) => { image.dispatchEvent(new Event(event)); return getComputedStyle(image).visibility; };
        return [after('error'), after('load')].join()";
    assert_eq!(browser.run(shown), json!("hidden,visible"));
    let nameless = "return [...document.querySelectorAll('#crops img, #place-events img')].filter((image) => !image.alt).length";
    assert_eq!(browser.run(nameless), json!(0));
    let errors: Vec<Value> = serde_json::from_str::<Vec<Value>>(&browser.messages()).unwrap_or_default();
    let is_unexpected = |error: &&Value| error["level"] == "SEVERE" && !error["message"].as_str().unwrap_or("").contains("/crops/");
    assert_eq!(errors.iter().filter(is_unexpected).collect::<Vec<_>>(), Vec::<&Value>::new());
    browser.open("about:blank");
}
