//! The devices of a core, and device families, which are engines with any number of devices.

use roiflow::runtime::ModelSource;
use roiflow::runtime::device::{Device, DeviceFamily, DeviceInfo, DeviceModel};
use roiflow::runtime::executor::Executors;

use super::*;
use crate::support::Scratch;

type Read = fn() -> Result<ModelInfo>;

const UNKNOWN: Read = || Err(Error::new(ErrorKind::Unsupported, "another format"));
const BROKEN: Read = || Err(Error::new(ErrorKind::Model, "it is cut off"));
const READ: Read = || Ok(ModelInfo { inputs: vec![port("x", &[1, 4])], ..ModelInfo::default() });

/// A device that reads model files with this function, and cannot run them.
struct Reader(Read);

impl Device for Reader {
    fn name(&self) -> &str {
        "READER"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { description: String::new(), properties: Vec::new(), missing: None }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        (self.0)()
    }

    fn compile(&self, _model: &Model, _config: &Config, _executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        Err(Error::new(ErrorKind::Unsupported, "it only reads"))
    }
}

/// A family of NULL devices, which may have any name after the prefix. `known` are the devices that it lists.
struct Family {
    prefix: &'static str,
    known: Vec<&'static str>,
    read: Read,
}

impl DeviceFamily for Family {
    fn prefix(&self) -> &str {
        self.prefix
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.known.iter().map(|name| self.device(name)).collect()
    }

    fn device(&self, name: &str) -> Arc<dyn Device> {
        Arc::new(NullDevice::instance(name, Arc::default()))
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        (self.read)()
    }
}

fn names(core: &Core) -> Vec<String> {
    core.devices().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_family_gives_the_devices_behind_its_prefix() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    core.register_family(Arc::new(Family { prefix: "A", known: vec!["A.0"], read: UNKNOWN }));
    core.register_family(Arc::new(Family { prefix: "B", known: vec!["B.0", "B.1"], read: UNKNOWN }));
    assert_eq!(names(&core), ["NULL", "A.0", "B.0", "B.1"]);
    for name in ["A.0", "B.1", "B.7", "A.HETERO:B.0"] {
        assert_eq!(compile_on(&core, name, &Config::default()).device(), name);
    }
    let engine_first = "; other devices have the name of their engine first, such as `A.GPU` or `B.GPU`";
    for (name, hint) in
        [("A.", ""), ("AA.0", ""), ("C.0", ""), (".0", ""), ("", ""), ("gpu", engine_first), ("null", "; did you mean `NULL`?")]
    {
        let error = core.default_context(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}");
        assert_eq!(error.to_string(), format!("no device `{name}`: expected one of NULL, A.CPU, B.CPU{hint}"));
    }
    // A registered device or family replaces an earlier one with the same name.
    core.register_family(Arc::new(Family { prefix: "A", known: vec!["A.5"], read: UNKNOWN }));
    core.register(Arc::new(NullDevice::default()));
    assert_eq!(names(&core), ["NULL", "B.0", "B.1", "A.5"]);
}

/// The first device or family that knows the format reads the model or reports its error. If a device does not know the format, the next
/// device is tried.
#[test]
fn a_model_is_read_by_the_first_that_knows_its_format() {
    let scratch = Scratch::new("devices");
    let path = scratch.file("model.any", "any");
    let read = |of_device: Read, of_families: &[Read]| {
        let mut core = Core::new();
        core.register(Arc::new(Reader(of_device)));
        for (prefix, read) in ["A", "B"].iter().zip(of_families) {
            core.register_family(Arc::new(Family { prefix, known: Vec::new(), read: *read }));
        }
        core.read_model(&path).map(|model| model.info().inputs.len()).map_err(|error| (error.kind(), error.to_string()))
    };
    let refused = || Err((ErrorKind::Model, "it is cut off".to_owned()));
    assert_eq!(read(READ, &[BROKEN]), Ok(1));
    assert_eq!(read(UNKNOWN, &[READ, BROKEN]), Ok(1));
    assert_eq!(read(UNKNOWN, &[UNKNOWN, READ]), Ok(1));
    assert_eq!(read(BROKEN, &[READ]), refused(), "no engine is loaded to say it again");
    assert_eq!(read(UNKNOWN, &[BROKEN, READ]), refused());
    let message = format!("cannot read model `{}`: another format", path.display());
    assert_eq!(read(UNKNOWN, &[UNKNOWN, UNKNOWN]), Err((ErrorKind::Model, message)));
    let message = format!("no device reads models such as `{}`", path.display());
    assert_eq!(read(UNKNOWN, &[]), Err((ErrorKind::Model, message)));
}

/// Options of an engine require that an engine with that prefix is registered, even if the model is compiled for another device.
#[test]
fn options_of_an_engine_need_an_engine_of_that_name() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    core.register_family(Arc::new(Family { prefix: "A", known: Vec::new(), read: UNKNOWN }));
    core.register_family(Arc::new(Family { prefix: "B", known: Vec::new(), read: UNKNOWN }));
    let model =
        Model::from_ports(ModelInfo { inputs: vec![port("x", &[1, 4])], outputs: vec![port("y", &[1, 4])], ..ModelInfo::default() });
    let compile = |options: &str| {
        let mut config = Config::default();
        config.set_all(options).unwrap();
        core.compile_model(&model, "NULL", &config).map(drop)
    };
    compile("A.streams=2,B.streams=3").unwrap();
    for options in ["C.streams=2", "A.streams=2,AB.streams=2"] {
        let error = compile(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("expected the prefix of an engine with its own options, one of A, B"), "{error}");
    }
}
