//! The page of `roiflow serve` in a real browser: Chromium without a window, driven through WebDriver.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Folder;
use crate::serve::{Served, send};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    driver: Child,
    address: String,
    session: String,
}

impl Browser {
    /// Starts the browser. Returns `None` if it is not installed. On a machine for continuous integration, it must be installed.
    pub fn start() -> Option<Self> {
        let started =
            Command::new("chromedriver").arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = match started {
            Ok(driver) => driver,
            Err(_) => {
                assert!(std::env::var_os("CI").is_none(), "expected chromedriver; install chromium and chromium-driver");
                eprintln!("skipped: chromedriver is not installed; install chromium and chromium-driver");
                return None;
            }
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("chromedriver prints its port").unwrap();
            if let Some((_, port)) = line.split_once("on port ").filter(|_| line.contains("successfully")) {
                break port.trim_end_matches('.').to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self { driver, address: format!("127.0.0.1:{port}"), session: String::new() };
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}});
        let created = browser.post("/session", capabilities);
        browser.session = created["sessionId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned();
        Some(browser)
    }

    fn request(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (_, text) = send(&self.address, method, path, body);
        let answer: Value = serde_json::from_slice(&text).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&text)));
        answer["value"].clone()
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.request("POST", path, Some(body))
    }

    fn command(&self, path: &str, body: Value) -> Value {
        self.post(&format!("/session/{}/{path}", self.session), body)
    }

    pub fn open(&self, address: &str) {
        self.command("url", json!({"url": address}));
    }

    /// Runs a script, which returns a value.
    pub fn run(&self, script: &str) -> Value {
        let value = self.command("execute/sync", json!({"script": script, "args": []}));
        assert!(value.get("error").is_none(), "{script}: {value}");
        value
    }

    /// Runs a script that calls its last argument with a value.
    pub fn run_async(&self, script: &str) -> Value {
        let value = self.command("execute/async", json!({"script": script, "args": []}));
        assert!(value.get("error").is_none(), "{script}: {value}");
        value
    }

    /// Waits until a script returns a true value, and returns it.
    pub fn wait_until(&self, script: &str) -> Value {
        let begin = Instant::now();
        loop {
            let value = self.run(script);
            if !matches!(&value, Value::Null | Value::Bool(false)) && value != "" {
                return value;
            }
            assert!(begin.elapsed() < LIMIT, "{script}: {}\n{}", self.run("return document.body.innerText"), self.messages());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn element(&self, selector: &str) -> String {
        self.wait_until(&format!("return !!document.querySelector({selector:?})"));
        let found = self.command("element", json!({"using": "css selector", "value": selector}));
        found
            .as_object()
            .and_then(|found| found.values().next()?.as_str().map(str::to_owned))
            .unwrap_or_else(|| panic!("{selector}: {found}"))
    }

    fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.command(&format!("element/{element}/value"), json!({"text": text}));
    }

    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        let clicked = self.command(&format!("element/{element}/click"), json!({}));
        assert!(clicked.is_null(), "{selector}: {clicked}");
    }

    /// Clicks at a place of an element, in fractions of its size.
    fn click_at(&self, selector: &str, x: f64, y: f64) {
        self.element(selector);
        let place = self.run(&format!(
            "const element = document.querySelector({selector:?});
             element.scrollIntoView({{block: 'center'}});
             const box = element.getBoundingClientRect();
             return [Math.round(box.left + {x} * box.width), Math.round(box.top + {y} * box.height)];"
        ));
        let actions = json!([
            {"type": "pointerMove", "duration": 0, "x": place[0], "y": place[1]},
            {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0},
        ]);
        let done = self.command("actions", json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]}));
        assert!(done.is_null(), "{selector}: {done}");
    }

    /// Presses keys one after the other, with Shift held.
    fn press_with_shift(&self, keys: &str) {
        const SHIFT: &str = "\u{e008}";
        let press = |key: char| [json!({"type": "keyDown", "value": key.to_string()}), json!({"type": "keyUp", "value": key.to_string()})];
        let actions: Vec<Value> = [json!({"type": "keyDown", "value": SHIFT})]
            .into_iter()
            .chain(keys.chars().flat_map(press))
            .chain([json!({"type": "keyUp", "value": SHIFT})])
            .collect();
        let done = self.command("actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
        assert!(done.is_null(), "{done}");
    }

    /// Errors and warnings of the console of the browser.
    pub fn messages(&self) -> String {
        self.command("se/log", json!({"type": "browser"})).to_string()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.request("DELETE", &format!("/session/{}", self.session), None)
            }));
        }
        let _killed = self.driver.kill();
        let _ended = self.driver.wait();
    }
}

/// A number that depends on all pixels of the picture that this selector finds.
fn sum_of_pixels(selector: &str) -> String {
    format!(
        "const image = document.querySelector({selector:?});
         if (!image || !image.complete || !image.naturalWidth) return null;
         const canvas = document.createElement('canvas');
         [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
         const context = canvas.getContext('2d');
         context.drawImage(image, 0, 0);
         return context.getImageData(0, 0, canvas.width, canvas.height).data.reduce((sum, value, idx) => (sum * 31 + value * (idx % 7)) % 1000003, 1);"
    )
}

#[test]
fn stream_is_added_watched_and_removed_in_a_browser() {
    let Some(browser) = Browser::start() else { return };
    let folder = Folder::new("serve-page");
    let server = Served::start(&folder, &[]);
    browser.open(&format!("http://{}/", server.address));
    browser.wait_until("return document.body.innerText.includes('There are no streams yet')");

    // A mistake is explained, and the form keeps what was typed.
    browser.type_into("#add [name=name]", "door");
    browser.type_into("#add [name=input]", "/etc/passwd");
    browser.run("const select = document.querySelector('#add [name=pipeline]'); select.value = 'colors'; select.dispatchEvent(new Event('change', {bubbles: true}));");
    browser.click("#add button[type=submit]");
    browser.wait_until("return document.querySelector('#add [role=alert]').innerText.includes('media folder')");
    browser.click("#probe");
    browser.wait_until("return document.querySelector('#add [role=alert]').innerText.includes('media folder')");
    browser.run("document.querySelector('#add [name=input]').select()");
    browser.type_into("#add [name=input]", "test:");
    browser.click("#probe");
    browser.wait_until("return document.querySelector('#found').innerText === '640 × 480 pixels, not compressed, 30 frames per second'");
    browser.run("document.querySelector('#add [name=input]').select()");
    browser.type_into("#add [name=input]", "test:");
    browser.click("#add [name=loop]");
    browser.click("#add button[type=submit]");

    // The tile has the state, objects, and a picture that changes.
    browser.wait_until("return document.querySelector('[data-stream=door] .state')?.innerText === 'running'");
    browser.wait_until("return /\\d+ rectangle/.test(document.querySelector('[data-stream=door]').innerText)");
    let tile = sum_of_pixels("[data-stream=door] img");
    let first = browser.wait_until(&tile);
    let begin = Instant::now();
    while browser.wait_until(&tile) == first {
        assert!(begin.elapsed() < LIMIT, "the picture does not change");
        std::thread::sleep(Duration::from_millis(50));
    }

    // The page of the stream has a live picture, with boxes drawn over it.
    browser.click("[data-stream=door] a");
    browser.wait_until("return document.querySelector('.live video')?.videoWidth === 640");
    let drawn = "const canvas = document.querySelector('.live canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return canvas.width > 0 && data.some((value, idx) => idx % 4 === 3 && value > 0);";
    browser.wait_until(drawn);
    browser.click("[name=boxes]");
    browser.click("[name=labels]");
    browser.wait_until(&drawn.replace("return canvas.width > 0 && data.some", "return canvas.width > 0 && !data.some"));
    browser.wait_until("return document.querySelectorAll('.uplot').length === 2");
    browser.wait_until("return document.querySelector('main').innerText.includes('started')");

    // Open the other pages.
    browser.run("location.hash = '#/events'");
    browser.wait_until("return document.querySelector('tbody')?.innerText.includes('added')");
    browser.run("location.hash = '#/settings'");
    browser.wait_until("return document.querySelector('main').innerText.includes('You are operator')");
    browser.run("const select = document.querySelector('[name=theme]'); select.value = 'dark'; select.dispatchEvent(new Event('change', {bubbles: true}));");
    browser.wait_until("return getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 28)'");

    // All controls can be reached with the keyboard, and have names.
    browser.run("location.hash = '#/'");
    browser.element("#add");
    let nameless = "return [...document.querySelectorAll('input, select, button, a')]
        .filter((control) => control.tabIndex < 0 || !(control.labels?.length || control.textContent.trim() || control.getAttribute('aria-label')))
        .map((control) => control.outerHTML)";
    assert_eq!(browser.run(nameless), json!([]));

    browser.click("[data-stream=door] a");
    browser.click("button.danger");
    browser.click("dialog #remove");
    browser.wait_until("return document.body.innerText.includes('There are no streams yet')");
    assert_eq!(server.json("GET", "/api/streams", None).1, json!({"streams": []}));
    let messages = browser.messages();
    let errors: Vec<Value> = serde_json::from_str::<Vec<Value>>(&messages).unwrap_or_default();
    let is_expected = |message: &Value| {
        // Refused requests, and the stream that is gone, are expected. Warnings are about the pixels that this test reads.
        message["level"] != "SEVERE" || message["message"].as_str().is_some_and(|text| text.contains("status of 4"))
    };
    let unexpected: Vec<&Value> = errors.iter().filter(|message| !is_expected(message)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

/// Keys of WebDriver.
const ENTER: &str = "\u{e007}";
const UP: &str = "\u{e013}";
const DOWN: &str = "\u{e015}";

#[test]
fn zone_and_line_are_drawn_and_their_counts_rise() {
    let Some(browser) = Browser::start() else { return };
    let folder = Folder::new("serve-zones");
    // A square that moves from the left to the right, in 1.6 seconds.
    crate::harness::make_clip(&folder.file("clip.mp4"), 40, "mp4mux");
    let text = format!(
        "version = 1\nname = \"moving\"\ndescription = \"Counts.\"\n[parameters.lines]\ntype = \"string\"\ndefault = \"\"\n\
         [parameters.zones]\ntype = \"string\"\ndefault = \"corner:0,0,0.05,0,0.05,0.05\"\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU ! roitrack ! roianalytics lines={{lines}} zones={{zones}} ! {{json}} ! {{video}}\"\n",
        crate::harness::tiny("rectangle.onnx")
    );
    std::fs::write(folder.file("moving.toml"), text).unwrap();
    let server = Served::start(&folder, &[]);
    let stream = json!({"name": "door", "pipeline": "moving", "input": "clip.mp4", "loop": true});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    browser.open(&format!("http://{}/#/streams/door", server.address));
    browser.wait_until("return document.querySelector('.live video')?.videoWidth === 256");
    browser.wait_until("return document.querySelector('[data-place=corner] .in')?.innerText === '0'");

    // A zone in the middle, by mouse. It can be saved with three corners and a new name.
    browser.click("#draw-zone");
    for (x, y) in [(0.4, 0.3), (0.6, 0.3)] {
        browser.click_at(".surface", x, y);
    }
    browser.wait_until("return document.querySelector('#places [role=status]').innerText.includes('Points: 2, 1 more needed')");
    browser.type_into("[name=place-name]", "corner");
    assert_eq!(browser.run("return document.querySelector('#save-place').disabled"), json!(true));
    for (x, y) in [(0.6, 0.95), (0.4, 0.95)] {
        browser.click_at(".surface", x, y);
    }
    assert_eq!(browser.run("return document.querySelector('#save-place').disabled"), json!(true), "the name is taken");
    browser.run("document.querySelector('[name=place-name]').select()");
    browser.type_into("[name=place-name]", "middle");
    browser.click("#save-place");
    let count = |place: &str, least: u64| {
        format!(
            "const row = document.querySelector('[data-place={place}]');
                 return row && [...row.children].slice(2, 4).some((cell) => Number(cell.innerText) >= {least})"
        )
    };
    browser.wait_until(&count("middle", 1));
    browser.wait_until(&count("middle", 3));
    browser.wait_until("return [...document.querySelectorAll('.place-label')].some((label) => /^middle: \\d+ in, \\d+ out, \\d inside$/.test(label.innerText))");
    let zones = server.view("door")["parameters"]["zones"].as_str().unwrap().to_owned();
    let corners: Vec<f64> = zones.split_once("middle:").unwrap().1.split(',').map(|number| number.parse().unwrap()).collect();
    let expected = [0.4, 0.3, 0.6, 0.3, 0.6, 0.95, 0.4, 0.95];
    assert!(corners.len() == 8 && corners.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01), "{zones}");

    // A line from top to bottom, by keyboard: the surface has the focus.
    browser.click("#draw-line");
    browser.wait_until("return document.activeElement.classList.contains('surface')");
    browser.press_with_shift(&format!("{}{ENTER}{}{ENTER}", UP.repeat(9), DOWN.repeat(18)));
    browser.wait_until("return document.querySelector('#places [role=status]').innerText.includes('Points: 2, enough')");
    browser.type_into("[name=place-name]", "gate");
    browser.click("#save-place");
    browser.wait_until(&count("gate", 2));
    assert_eq!(server.view("door")["parameters"]["lines"], "gate:0.5,0.05,0.5,0.95");

    // Deleting a zone keeps the others, and nothing was restarted.
    browser.click("[data-place=middle] button");
    browser.wait_until("return !document.querySelector('[data-place=middle]')");
    let view = server.view("door");
    assert!(view["restarts"] == 0 && view["parameters"]["zones"] == "corner:0,0,0.05,0,0.05,0.05", "{view}");
    let names: Vec<&str> = view["places"].as_array().unwrap().iter().map(|place| place["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gate"]);
    let (_, events) = server.json("GET", "/api/events?limit=500", None);
    let n_started = events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "started").count();
    assert_eq!(n_started, 1, "{events}");
    // The page can be read by a screen reader, and has no errors.
    let nameless = "return [...document.querySelectorAll('input, select, button, a')]
        .filter((control) => control.tabIndex < 0 || !(control.labels?.length || control.textContent.trim() || control.getAttribute('aria-label')))
        .map((control) => control.outerHTML)";
    assert_eq!(browser.run(nameless), json!([]));
    let errors: Vec<Value> = serde_json::from_str::<Vec<Value>>(&browser.messages()).unwrap_or_default();
    assert!(errors.iter().all(|message| message["level"] != "SEVERE"), "{errors:?}");
}
