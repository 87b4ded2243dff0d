//! Reads the metadata that Ultralytics writes into ONNX files (YOLOv5 to YOLO26), and into `metadata.yaml` next to OpenVINO files.
//!
//! Keys: `task`, `names`, `imgsz` (height, width), `channels`, `end2end`, `head`, `kpt_shape`, and `nms` in `args`. Exports of the YOLOv5 and YOLOv9
//! repositories have only `stride` and `names`. Values are Python literals; in YAML files they are plain scalars. The metadata do not
//! contain the preprocessing, which is the same for all models of a task.

use std::path::Path;

use super::super::config;
use super::super::draft::{Draft, Value};
use super::{extents, layout_of, leaves_size_open, n_channels};
use crate::runtime::{ModelInfo, Result, files};

/// The metadata of an export.
#[derive(Debug, PartialEq, Default)]
pub(super) struct Exported {
    /// The task; `None` for exports of the YOLOv5 and YOLOv9 repositories.
    task: Option<String>,
    names: Vec<String>,
    /// Height and width.
    size: Option<[u64; 2]>,
    n_channels: Option<u64>,
    /// Whether boxes are final: the model needs no NMS, or includes it.
    is_final: bool,
    head: Option<String>,
    /// Number of keypoints, and number of values per keypoint.
    keypoints: Option<[u64; 2]>,
}

impl Exported {
    /// Reads the metadata; `None` if the model is not an export of Ultralytics.
    ///
    /// # Errors
    /// Returns `Config` if the metadata are invalid.
    pub(super) fn read(model: &Path, info: &ModelInfo) -> Result<Option<Self>> {
        let of = |key: &str| info.metadata.get(key).map(String::as_str);
        let is_of_yolo = of("author").is_some_and(|author| author.contains("Ultralytics")) && of("task").is_some();
        let is_of_yolov5 = of("stride").is_some() && of("names").is_some() && of("task").is_none();
        if is_of_yolo || is_of_yolov5 {
            return Self::of_keys(of).map(Some);
        }
        // Ultralytics writes each OpenVINO export into its own folder. So if the folder of the model contains `metadata.yaml`,
        // that file belongs to the model.
        let yaml_path = model.parent().unwrap_or(Path::new("")).join("metadata.yaml");
        if model.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml"))
            && let Ok(text) = files::read_text(&yaml_path, files::MAX_DESCRIPTION_BYTES, "metadata")
        {
            let keys = Yaml::read(&text);
            if keys.get("author").is_some_and(|author| author.contains("Ultralytics")) {
                let exported = Self::of_keys(|key| keys.get(key));
                return exported.map(Some).map_err(|error| error.context(format!("`{}`", yaml_path.display())));
            }
        }
        Ok(None)
    }

    fn of_keys<'a>(of: impl Fn(&str) -> Option<&'a str>) -> Result<Self> {
        let wrong = |key: &str, expected: &str, got: &str| config(format!("metadata `{key}`: expected {expected}, got `{got}`"));
        let names = of("names").unwrap_or_default();
        let names = Literal::read(names)
            .and_then(Literal::into_names)
            .ok_or_else(|| wrong("names", "the names of classes 0, 1, 2 and so on", names))?;
        let flag = |key: &str| of(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let size = match of("imgsz").map(|text| (text, Literal::read(text).and_then(Literal::into_numbers))) {
            None => None,
            Some((_, Some(numbers))) if matches!(*numbers, [_] | [_, _]) => Some([numbers[0], numbers[numbers.len() - 1]]),
            Some((text, _)) => return Err(wrong("imgsz", "height and width", text)),
        };
        let n_channels = match of("channels").map(|text| (text, text.parse().ok())) {
            None => None,
            Some((_, Some(n_channels))) => Some(n_channels),
            Some((text, None)) => return Err(wrong("channels", "a number", text)),
        };
        let keypoints = match of("kpt_shape").map(|text| (text, Literal::read(text).and_then(Literal::into_numbers))) {
            None => None,
            Some((_, Some(numbers))) if matches!(*numbers, [_, 2 | 3]) => Some([numbers[0], numbers[1]]),
            Some((text, _)) => return Err(wrong("kpt_shape", "the number of keypoints, and 2 or 3", text)),
        };
        let args = of("args").unwrap_or_default().replace(['\'', '"'], "");
        let is_final = flag("end2end") || flag("nms") || args.contains("nms: True") || args.contains("nms: true");
        Ok(Self { task: of("task").map(str::to_owned), names, size, n_channels, is_final, head: of("head").map(str::to_owned), keypoints })
    }

    /// Converts the metadata to a draft of the description.
    ///
    /// # Errors
    /// Returns `Config` if the task is unsupported, or the ports contradict the metadata.
    pub(super) fn draft(&self, info: &ModelInfo) -> Result<Draft> {
        let task = match self.task.as_deref() {
            None | Some("detect" | "segment" | "pose" | "obb") => "detection",
            Some("classify") => "classification",
            Some(task) => {
                let expected = "expected `detect`, `segment`, `pose`, `obb` or `classify`";
                return Err(config(format!("the model is an Ultralytics model for the task `{task}`: {expected}")));
            }
        };
        let is_transformer = self.head.as_deref() == Some("RTDETRDecoder");
        let mut draft = Draft::default();
        let n_classes = self.names.len();
        draft.about.push(format!("A model for {task} with {n_classes} classes, as Ultralytics exported it."));
        draft.top.set("task", task);
        let Some(port) = info.inputs.first() else { return Err(config("the model has no input".to_owned())) };
        let layout = layout_of(port).unwrap_or("nchw");
        let is_gray = match self.n_channels.map(|n| n as usize).or_else(|| n_channels(port, layout)) {
            Some(1) => true,
            Some(3) | None => false,
            Some(n) => return Err(config(format!("the model's input has {n} channels: expected 1 or 3"))),
        };
        let why = "Ultralytics preprocesses this way";
        let input = &mut draft.input;
        input.assume("color", if is_gray { "gray" } else { "rgb" }, why);
        input.set("layout", layout);
        match task {
            "detection" if is_transformer => input.assume("resize", "stretch", "Ultralytics resizes images for RT-DETR this way"),
            "detection" => {
                input.assume("resize", "letterbox", why);
                input.assume("pad", 114.0, why);
            }
            _ => {
                input.assume("resize", "crop", "Ultralytics crops the center for classifiers");
                input.assume("antialias", true, "Ultralytics resizes with Pillow");
            }
        }
        input.assume("scale", Value::Numbers(vec![255.0]), why);
        input.assume("rounding", "u8", why);
        if leaves_size_open(port, layout)
            && let Some([height, width]) = self.size
        {
            input.set("size", Value::Wholes(vec![width, height]));
        }
        let output = &mut draft.output;
        if task == "classification" {
            output.set("decoder", "classes");
            output.assume("activation", "none", "classifiers of Ultralytics include a softmax");
        } else {
            output.set("decoder", self.decoder(info)?);
            let why = "Ultralytics uses this value by default";
            output.assume("threshold", 0.25, why);
            if self.task.as_deref() == Some("pose") {
                self.describe_keypoints(output);
            }
            if !["yolov10", "yolov10-seg", "yolov10-pose", "yolov10-obb", "rtdetr"].iter().any(|decoder| output_is(output, decoder)) {
                output.assume("iou-threshold", if self.task.is_none() { 0.45 } else { 0.7 }, why);
            }
        }
        output.set("labels", Value::Texts(self.names.clone()));
        Ok(draft)
    }

    fn describe_keypoints(&self, output: &mut super::super::draft::Section) {
        if let Some([_, n_values @ 2]) = self.keypoints {
            output.set("keypoint-values", Value::Whole(n_values));
        }
        if self.names.len() > 1 && output_is(output, "yolov8-pose") {
            output.set("classes", Value::Whole(self.names.len() as u64));
        }
    }

    /// Number of values in a row in addition to the box and the class scores.
    fn n_additional(&self, info: &ModelInfo) -> Option<usize> {
        match self.task.as_deref() {
            Some("segment") => prototypes(info),
            Some("pose") => self.keypoints.map(|[n_keypoints, n_values]| (n_keypoints * n_values) as usize),
            Some("obb") => Some(1),
            None => Some(prototypes(info).unwrap_or(0)),
            Some(_) => Some(0),
        }
    }

    /// Returns the decoder for the table of a detector.
    fn decoder(&self, info: &ModelInfo) -> Result<&'static str> {
        let n_classes = self.names.len();
        let n_additional = self.n_additional(info);
        let n_more = n_additional.unwrap_or(0);
        let unexpected = || {
            let outputs = info.outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let table = match self.task {
                None => format!("[1, N, {}] or [1, {}, N]", 5 + n_classes + n_more, 4 + n_classes + n_more),
                Some(_) => format!("[1, {}, N], or [1, N, {}] of final boxes", 4 + n_classes + n_more, 6 + n_more),
            };
            let further = match self.task.as_deref() {
                Some("segment") => " and prototypes [1, coefficients, h, w]",
                _ => "",
            };
            config(format!("the metadata describe a YOLO of {n_classes} classes: expected one output {table}{further}, got {outputs}"))
        };
        if n_additional.is_none() {
            return Err(unexpected());
        }
        // YOLOv5 models may also output the maps of their strides, which have more than three axes.
        let tables: Vec<_> = info.outputs.iter().map(extents).filter(|extents| extents.len() == 3).collect();
        let [table] = &*tables else { return Err(unexpected()) };
        let fits = |axis: usize, expected: usize| table[axis].is_none_or(|extent| extent == expected);
        if self.head.as_deref() == Some("RTDETRDecoder") {
            let got = info.outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let message = format!(
                "the metadata describe an RT-DETR of {n_classes} classes: expected one output [1, N, {}], got {got}",
                4 + n_classes
            );
            return if fits(2, 4 + n_classes) { Ok("rtdetr") } else { Err(config(message)) };
        }
        let n_rows = 4 + n_classes + n_more;
        let is_list = table[2] == Some(6 + n_more) && table[1].is_some_and(|extent| extent != n_rows);
        let (of_cells, of_list) = match self.task.as_deref() {
            Some("segment") => ("yolov8-seg", "yolov10-seg"),
            Some("pose") => ("yolov8-pose", "yolov10-pose"),
            Some("obb") => ("yolov8-obb", "yolov10-obb"),
            _ => ("yolov8", "yolov10"),
        };
        match self.task {
            None if table[2] == Some(5 + n_classes + n_more) => Ok(if n_more > 0 { "yolov5-seg" } else { "yolov5" }),
            // Exports of the YOLOv9 repository also have no `task`, but have the table layout of YOLOv8.
            None if table[1] == Some(n_rows) => Ok(if n_more > 0 { "yolov8-seg" } else { "yolov8" }),
            None => Err(unexpected()),
            Some(_) if self.is_final || is_list => {
                if fits(2, 6 + n_more) {
                    Ok(of_list)
                } else {
                    Err(unexpected())
                }
            }
            Some(_) if fits(1, n_rows) => Ok(of_cells),
            Some(_) => Err(unexpected()),
        }
    }
}

/// Number of prototypes of a model with masks, from its only output of four axes.
fn prototypes(info: &ModelInfo) -> Option<usize> {
    let maps: Vec<_> = info.outputs.iter().map(extents).filter(|extents| extents.len() == 4).collect();
    match &*maps {
        [map] => map[1],
        _ => None,
    }
}

fn output_is(output: &super::super::draft::Section, decoder: &str) -> bool {
    output.get("decoder") == Some(&Value::from(decoder))
}

/// A Python literal of a kind that occurs in the metadata.
#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Whole(u64),
    Text(String),
    List(Vec<Literal>),
    Pairs(Vec<(Literal, Literal)>),
}

impl Literal {
    /// Maximum nesting depth.
    const MAX_DEPTH: usize = 4;

    fn read(text: &str) -> Option<Self> {
        let mut rest = text;
        let literal = Self::next(&mut rest, 0)?;
        rest.trim().is_empty().then_some(literal)
    }

    /// Converts a list of strings to names. Also accepts a dict whose keys are 0, 1, 2 and so on.
    fn into_names(self) -> Option<Vec<String>> {
        let name = |literal: Self| match literal {
            Self::Text(text) => Some(text),
            Self::Whole(number) => Some(number.to_string()),
            _ => None,
        };
        match self {
            Self::List(list) => list.into_iter().map(name).collect(),
            Self::Pairs(pairs) => {
                let mut by_class: Vec<(u64, String)> = Vec::new();
                for (key, value) in pairs {
                    let Self::Whole(class) = key else { return None };
                    by_class.push((class, name(value)?));
                }
                by_class.sort_by_key(|(class, _)| *class);
                let is_complete = (0..).zip(&by_class).all(|(class_idx, (class, _))| class_idx == *class);
                is_complete.then(|| by_class.into_iter().map(|(_, name)| name).collect())
            }
            _ => None,
        }
    }

    fn into_numbers(self) -> Option<Vec<u64>> {
        match self {
            Self::Whole(number) => Some(vec![number]),
            Self::List(list) => list.into_iter().map(|item| if let Self::Whole(number) = item { Some(number) } else { None }).collect(),
            _ => None,
        }
    }

    fn next(rest: &mut &str, depth: usize) -> Option<Self> {
        *rest = rest.trim_start();
        match rest.chars().next()? {
            quote @ ('\'' | '"') => Self::text(rest, quote),
            open @ ('[' | '(' | '{') if depth < Self::MAX_DEPTH => {
                *rest = &rest[1..];
                let close = if open == '[' {
                    ']'
                } else if open == '(' {
                    ')'
                } else {
                    '}'
                };
                let (mut list, mut pairs) = (Vec::new(), Vec::new());
                loop {
                    *rest = rest.trim_start();
                    if let Some(behind) = rest.strip_prefix(close) {
                        *rest = behind;
                        break;
                    }
                    let item = Self::next(rest, depth + 1)?;
                    *rest = rest.trim_start();
                    if open == '{' {
                        *rest = rest.strip_prefix(':')?;
                        pairs.push((item, Self::next(rest, depth + 1)?));
                        *rest = rest.trim_start();
                    } else {
                        list.push(item);
                    }
                    match rest.strip_prefix(',') {
                        Some(behind) => *rest = behind,
                        None if rest.starts_with(close) => {}
                        None => return None,
                    }
                }
                Some(if open == '{' { Self::Pairs(pairs) } else { Self::List(list) })
            }
            digit if digit.is_ascii_digit() => {
                let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                let (digits, behind) = rest.split_at(n_digits);
                *rest = behind;
                digits.parse().ok().map(Self::Whole)
            }
            _ => None,
        }
    }

    /// Parses a string in quotes of the kind `quote`, with Python escapes.
    fn text(rest: &mut &str, quote: char) -> Option<Self> {
        let mut text = String::new();
        let mut characters = rest[1..].chars();
        loop {
            match characters.next()? {
                end if end == quote => break,
                '\\' => text.push(match characters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    kind @ ('x' | 'u' | 'U') => {
                        let n_digits = match kind {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let digits: String = characters.by_ref().take(n_digits).collect();
                        u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)?
                    }
                    other => other,
                }),
                other => text.push(other),
            }
        }
        *rest = characters.as_str();
        Some(Self::Text(text))
    }
}

/// The keys on the first level of a YAML file in Ultralytics' style, and their values. Values that are lists or maps are
/// converted to Python literals. Lines of other kinds are ignored.
struct Yaml(Vec<(String, String)>);

impl Yaml {
    fn read(text: &str) -> Self {
        let mut keys: Vec<(String, String)> = Vec::new();
        let mut items: Vec<String> = Vec::new();
        let (mut is_list, mut lines) = (false, text.lines().peekable());
        while let Some(line) = lines.next() {
            let Some((key, value)) = line.split_once(':').filter(|_| !line.starts_with([' ', '-', '#'])) else { continue };
            let value = value.trim();
            items.clear();
            if value.is_empty() {
                while let Some(item) = lines.next_if(|next| next.starts_with([' ', '-'])) {
                    let item = item.trim();
                    match item.strip_prefix("- ") {
                        Some(item) => {
                            is_list = true;
                            items.push(Self::scalar(item));
                        }
                        None => {
                            is_list = false;
                            if let Some((key, value)) = item.split_once(':') {
                                items.push(format!("{}: {}", Self::scalar(key), Self::scalar(value.trim())));
                            }
                        }
                    }
                }
                let all = items.join(", ");
                keys.push((key.to_owned(), if is_list { format!("[{all}]") } else { format!("{{{all}}}") }));
            } else {
                keys.push((key.to_owned(), value.trim_matches(['\'', '"']).to_owned()));
            }
        }
        Self(keys)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Converts a YAML scalar to a Python literal: a number stays unchanged, and any other text becomes a quoted string.
    fn scalar(text: &str) -> String {
        let inner = match text.chars().next() {
            Some('\'') => text.trim_matches('\'').replace("''", "'"),
            Some('"') => return text.to_owned(),
            _ if text.parse::<u64>().is_ok() => return text.to_owned(),
            _ => text.to_owned(),
        };
        format!("\"{}\"", inner.replace('\\', "\\\\").replace('"', "\\\""))
    }
}
