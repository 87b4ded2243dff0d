//! Changes the floating-point control of a thread (the register MXCSR) while it calls an engine that is written in another language.
//! Implemented only on x86-64 with the System V calling convention. On other systems, the engines are called without this change.
//!
//! A processor computes denormal numbers (below 1.2e-38 in `f32`) in microcode, some hundred times slower than other numbers. Trained
//! weights and activations that have decayed contain many of them. One age classifier takes 6.9 ms with denormals, and 2.0 ms if denormals
//! are treated as zero. No decoder depends on such small values. ONNX Runtime treats denormals as zero on its own threads, but not on the
//! thread that calls it.
//!
//! Rust code must not run while the control differs from its default, because the compiler assumes the default. So one assembly block sets
//! the control, calls the foreign function, and restores the control. For the compiler, the control therefore never changes. If the engine
//! calls back into Rust code, it does so with the changed control. [`entered_with_default_control!`] defines callbacks that set the default
//! control before the first instruction of Rust code, and restore the engine's control after the last instruction.

/// Calls `function` with `arguments`, while the processor treats denormal operands and results as zero. Afterwards restores the control of
/// the thread, even if the function changed it.
///
/// # Safety
/// `function` must be a foreign function with the C calling convention. It must take at most eight arguments, which are pointers or
/// integers of up to 64 bits, and return a pointer. It must not unwind. It must not read more arguments than it takes. The caller must also
/// meet the requirements of `function` itself.
#[cfg(all(target_arch = "x86_64", unix))]
#[cfg_attr(not(feature = "onnxruntime"), allow(dead_code, reason = "for ONNX Runtime only"))]
pub(crate) unsafe fn flushing_denormals(function: *const (), arguments: [*const (); 8]) -> *mut () {
    let [a, b, c, d, e, f, g, h] = arguments;
    let result: *mut ();
    // SAFETY: the block follows the calling convention. The stack is aligned to 16 bytes at its begin, and 32 more bytes keep that
    // alignment. The first six arguments are in registers, and the other two are on the stack. All registers that the function may change
    // are declared. MXCSR is restored before any Rust code runs. `0x8040` are the bits "flush to zero" and "denormals are zero" (Intel SDM,
    // volume 1, 10.2.3). All exceptions stay masked.
    unsafe {
        std::arch::asm!(
            "sub rsp, 32",
            "mov [rsp], {seventh}",
            "mov [rsp + 8], {eighth}",
            "stmxcsr [rsp + 16]",
            "mov r11d, [rsp + 16]",
            "or r11d, 0x8040",
            "mov [rsp + 20], r11d",
            "ldmxcsr [rsp + 20]",
            "call {function}",
            "ldmxcsr [rsp + 16]",
            "add rsp, 32",
            seventh = in(reg) g,
            eighth = in(reg) h,
            function = in(reg) function,
            out("r11") _,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("rcx") d,
            in("r8") e,
            in("r9") f,
            lateout("rax") result,
            clobber_abi("sysv64"),
        );
    }
    result
}

/// Defines a function that a foreign engine can call, with up to six arguments that are pointers or integers. The function calls `$rust`
/// with the default floating-point control.
macro_rules! entered_with_default_control {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $rust:path) => {
        $(#[$doc])*
        #[cfg(all(target_arch = "x86_64", unix))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($argument: $kind),*) {
            // The arguments stay in their registers. 24 bytes align the stack to 16. 0x1f80 is the control with which a thread starts.
            std::arch::naked_asm!(
                "sub rsp, 24",
                "stmxcsr [rsp + 8]",
                "mov dword ptr [rsp + 12], 0x1f80",
                "ldmxcsr [rsp + 12]",
                "call {rust}",
                "ldmxcsr [rsp + 8]",
                "add rsp, 24",
                "ret",
                rust = sym $rust,
            )
        }

        $(#[$doc])*
        #[cfg(not(all(target_arch = "x86_64", unix)))]
        unsafe extern "C" fn $name($($argument: $kind),*) {
            // SAFETY: the caller of this function guarantees the requirements of `$rust`.
            unsafe { $rust($($argument),*) }
        }
    };
}
pub(crate) use entered_with_default_control;

#[cfg(all(test, target_arch = "x86_64", unix))]
mod tests {
    use std::hint::black_box;
    use std::ptr;

    use super::*;

    /// If all arguments have the values that the test passes, returns half of the smallest normal number, as bits plus one. Otherwise
    /// returns 0.
    #[unsafe(naked)]
    extern "C" fn half_of_the_smallest() -> *mut () {
        std::arch::naked_asm!(
            "xor eax, eax",
            "cmp rdi, 1",
            "jne 2f",
            "cmp r9, 6",
            "jne 2f",
            "cmp qword ptr [rsp + 8], 7",
            "jne 2f",
            "cmp qword ptr [rsp + 16], 8",
            "jne 2f",
            "mov eax, 0x00800000",
            "movd xmm0, eax",
            "mov eax, 0x3f000000",
            "movd xmm1, eax",
            "mulss xmm0, xmm1",
            "movd eax, xmm0",
            "add rax, 1",
            "2:",
            "ret",
        )
    }

    unsafe extern "C" fn halve(place: *mut f32) {
        // SAFETY: `place` points to a local variable of the test.
        unsafe { *place = black_box(*place) * black_box(0.5) };
    }

    entered_with_default_control! {
        fn halve_entered(place: *mut f32) = halve
    }

    fn half(value: f32) -> f32 {
        black_box(value) * black_box(0.5)
    }

    fn numbers() -> [*const (); 8] {
        std::array::from_fn(|idx| ptr::without_provenance(idx + 1))
    }

    #[test]
    fn denormals_are_zero_in_the_foreign_function_alone() {
        assert!(half(f32::MIN_POSITIVE) > 0.0);
        // SAFETY: the function has the C calling convention, takes eight integers, returns a pointer and does not unwind.
        let result = unsafe { flushing_denormals(half_of_the_smallest as *const (), numbers()) };
        assert_eq!(result.addr(), 1, "0: an argument did not arrive; more: a denormal was computed");
        assert!(half(f32::MIN_POSITIVE) > 0.0);
    }

    #[test]
    fn code_that_is_called_back_computes_with_denormals() {
        let mut number = f32::MIN_POSITIVE;
        let arguments = [ptr::from_mut(&mut number).cast_const().cast(), ptr::null(), ptr::null(), ptr::null(), ptr::null(), ptr::null()];
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the function has the C calling convention, takes one pointer, which is valid, and does not unwind.
        unsafe { flushing_denormals(halve_entered as *const (), [a, b, c, d, e, f, ptr::null(), ptr::null()]) };
        assert!(number > 0.0 && number < f32::MIN_POSITIVE);
    }
}
