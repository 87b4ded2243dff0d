//! A model computes the same results whether it is read from a file or from bytes.

use roiflow::runtime::{ErrorKind, ModelBytes, ModelSource};

use super::*;

/// Ports, names and results are equal, with the original and with a new shape.
pub fn a_model_of_bytes_computes_what_its_file_does(device: &UnderTest) {
    let (core, name, of_file) = (device.source)();
    let ModelSource::File(path) = of_file.source() else {
        let error = core.read_model(ModelBytes::new([8, 7])).unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Model, "no device reads models such as `model of 2 bytes`"));
        return;
    };
    let bytes = ModelBytes::new(std::fs::read(path).unwrap()).named("doubles");
    let of_bytes = core.read_model(bytes).unwrap();
    assert_eq!((of_bytes.info(), &*of_bytes.name()), (of_file.info(), "doubles"));
    for n_rows in [None, Some(3)] {
        let ran = [&of_file, &of_bytes].map(|model| {
            let model = match n_rows {
                Some(n_rows) => model.reshape([("x", PartialShape::from([Dim::Fixed(n_rows), 4.into()]))]).unwrap(),
                None => model.clone(),
            };
            let compiled = core.compile_model(&model, name, &Config::default()).unwrap();
            let results = compiled.infer(batch(1, 3)).unwrap();
            (compiled.info().clone(), values(&results[0]))
        });
        assert_eq!(ran[0], ran[1], "{n_rows:?}");
        assert_eq!(ran[1].1, doubled(&numbers(1, 3)));
    }
}

/// Invalid model bytes give an error of kind `Model` with every device.
pub fn bytes_that_are_no_model_are_an_error(device: &UnderTest) {
    let (core, name, model) = (device.source)();
    let ModelSource::File(path) = model.source() else { return };
    let whole = std::fs::read(path).unwrap();
    let mut torn = whole[..whole.len() / 2].to_vec();
    torn.extend([0xff; 40]);
    for (bytes, said) in
        [(Vec::new(), "expected the bytes of a model file, got none"), (torn, "model of"), (vec![b'x'; 100], "model of 100 bytes")]
    {
        let error = core.read_model(ModelBytes::new(bytes)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model, "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
    }
}
