//! Sets denormal weights (below 1.2e-38 in `f32`) to zero when a plan (the compiled model of the engine) is compiled.
//!
//! A processor computes denormal numbers in microcode, some hundred times slower than other numbers. Trained weights that have decayed
//! contain many denormals, and no decoder depends on such small values. The usual remedy is to flush denormals with the floating-point
//! control register. This remedy is not possible here: the engine is Rust code, which must run with the default value of that register.
//! Therefore this module changes the weights.

use std::sync::Arc;

use tract_onnx::prelude::{Datum, TractResult, TypedModel};
use tract_onnx::tract_core::internal::TypedOp;
use tract_onnx::tract_core::ops::konst::Const;

/// Sets the denormal values of all constants to zero.
///
/// # Errors
/// Returns the error of the engine.
pub(super) fn flush_weights(model: &mut TypedModel) -> TractResult<()> {
    for node in &mut model.nodes {
        let Some(weights) = node.op_as::<Const>().filter(|weights| weights.exotic_fact().is_none()).map(Const::val) else { continue };
        if weights.datum_type() != f32::datum_type() || !weights.is_plain_ram() {
            continue;
        }
        let is_denormal = |value: &f32| value.is_subnormal();
        if !weights.try_as_plain_ram()?.as_slice::<f32>()?.iter().any(is_denormal) {
            continue;
        }
        let mut flushed = (**weights).clone();
        let mut view = flushed.try_as_plain_ram_mut()?;
        view.as_slice_mut::<f32>()?.iter_mut().filter(|value| value.is_subnormal()).for_each(|value| *value = 0.0);
        let flushed = Const::new(Arc::new(flushed))?;
        for (output, fact) in node.outputs.iter_mut().zip(flushed.output_facts(&[])?) {
            output.fact = fact;
        }
        node.op = Box::new(flushed);
    }
    Ok(())
}
