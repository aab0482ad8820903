//! Conversions between element types, as `as` does them: floating-point numbers become the nearest ones or saturate, integers wrap, NaN
//! becomes zero as an integer, and `false` and zero are each other.

use crate::element::ScalarType;
use crate::expression::emit::{EmittedValue, Emitter};

/// The value as another type.
pub(crate) fn convert(e: &mut Emitter, x: EmittedValue, to: ScalarType) -> EmittedValue {
    let register = match (x.of, to) {
        (from, to) if from == to => return x,
        (from, to) if to.is_complex() => {
            let [re, im] = x.parts().map(|part| convert(e, part, to.part()));
            let zero = |e: &mut Emitter| {
                let name = format!("mov.{}", to.name());
                EmittedValue::new(to.part(), e.value(to.part(), &name, &[&to.literal(0.0)]))
            };
            return EmittedValue::complex(re, if from.is_complex() { im } else { zero(e) });
        }
        (ScalarType::Bool, _) => {
            let (one, zero) = (to.literal(1.0), to.literal(0.0));
            let name = if to.is_float() { to.name() } else { to.bits() };
            e.value(to, &format!("selp.{name}"), &[&one, &zero, &x.register])
        }
        (from, ScalarType::Bool) => {
            let compare = if from.is_float() { "neu" } else { "ne" };
            e.value(to, &format!("setp.{compare}.{}", from.name()), &[&x.register, &from.literal(0.0)])
        }
        (from, _) if from.is_float() && !to.is_float() => float_to_integer(e, x, to),
        (ScalarType::F64, ScalarType::F16) => {
            let half = e.set('h', "cvt.rn.f16.f64", &[&x.register]);
            e.set('f', "cvt.f32.f16", &[&half])
        }
        (ScalarType::F64, ScalarType::Bf16) => {
            let odd = rounded_to_odd(e, x);
            e.finished(to, odd)
        }
        // 64 bits hold every number that is not too large for 16.
        (from, ScalarType::F16 | ScalarType::Bf16) if !from.is_float() => {
            let wide = convert(e, x, ScalarType::F64);
            return convert(e, wide, to);
        }
        (from, _) if to.is_float() => {
            let wide = match (from.name(), to.name()) {
                (same, other) if same == other => x.register,
                ("f32", "f64") => e.value(to, "cvt.f64.f32", &[&x.register]),
                (from, other) => e.value(to.wide(), &format!("cvt.rn.{other}.{from}"), &[&x.register]),
            };
            e.finished(to, wide)
        }
        (from, _) => {
            let wide = match (from.bits(), to.bits()) {
                ("b32", "b64") if from.is_signed() => e.value(to, "cvt.s64.s32", &[&x.register]),
                ("b32", "b64") => e.value(to, "cvt.u64.u32", &[&x.register]),
                ("b64", "b32") => e.value(to, "cvt.u32.u64", &[&x.register]),
                _ => x.register,
            };
            e.finished(to, wide)
        }
    };
    EmittedValue::new(to, register)
}

fn float_to_integer(e: &mut Emitter, x: EmittedValue, to: ScalarType) -> crate::expression::emit::Register {
    let (from, name) = (x.of.name(), to.name());
    // The instruction saturates. Its result for NaN differs between devices.
    let is_number = e.value(ScalarType::Bool, &format!("setp.num.{from}"), &[&x.register, &x.register]);
    let mut whole = e.value(to, &format!("cvt.rzi.{name}.{from}"), &[&x.register]);
    if to.size() < 4 {
        whole = e.value(to, &format!("min.{name}"), &[&whole, &to.limit(true)]);
        whole = e.value(to, &format!("max.{name}"), &[&whole, &to.limit(false)]);
    }
    e.value(to, &format!("selp.{}", to.bits()), &[&whole, &0, &is_number])
}

/// A number whose nearest number of 16 bits is that of `x`: it is rounded toward zero, and its last bit is set if that changed it.
/// Rounding to nearest twice could give another result.
fn rounded_to_odd(e: &mut Emitter, x: EmittedValue) -> crate::expression::emit::Register {
    let (float, word, flag) = (ScalarType::F32, ScalarType::U32, ScalarType::Bool);
    let near = e.value(float, "cvt.rz.f32.f64", &[&x.register]);
    let back = e.value(ScalarType::F64, "cvt.f64.f32", &[&near]);
    let is_changed = e.value(flag, "setp.ne.f64", &[&back, &x.register]);
    let bits = e.value(word, "mov.b32", &[&near]);
    let odd = e.value(word, "or.b32", &[&bits, &1]);
    let bits = e.value(word, "selp.b32", &[&odd, &bits, &is_changed]);
    e.value(float, "mov.b32", &[&bits])
}

/// A truth value as a number; other values as they are.
pub(crate) fn as_word(e: &mut Emitter, x: EmittedValue) -> EmittedValue {
    if x.of == ScalarType::Bool { convert(e, x, ScalarType::U32) } else { x }
}
