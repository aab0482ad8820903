//! [`Emitter`]: writes the instructions of a kernel, each value once.

use crate::element::ScalarType;
use crate::expression::functions;
use core::fmt;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// A virtual register: the letter of its class, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(char, u32);

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.0, self.1)
    }
}

/// A register with the type of its value. Values of small types are widened ([`ScalarType::wide`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmittedValue {
    pub(crate) of: ScalarType,
    /// The value; for a complex number, its real part.
    pub(crate) register: Register,
    /// The imaginary part of a complex number; for other types, the same register.
    imaginary: Register,
}

impl EmittedValue {
    pub(crate) fn new(of: ScalarType, register: Register) -> Self {
        Self { of, register, imaginary: register }
    }

    /// The complex number with these parts.
    pub(crate) fn complex(re: Self, im: Self) -> Self {
        let of = if re.of == ScalarType::F32 { ScalarType::Complex32 } else { ScalarType::Complex64 };
        Self { of, register: re.register, imaginary: im.register }
    }

    /// The real and the imaginary part.
    pub(crate) fn parts(self) -> [Self; 2] {
        [self.register, self.imaginary].map(|register| Self::new(self.of.part(), register))
    }
}

/// An operand of an instruction: a register or a literal.
pub(crate) type InstructionOperand<'o> = &'o dyn fmt::Display;

#[derive(Default)]
pub(crate) struct Emitter {
    text: String,
    counts: BTreeMap<char, u32>,
    labels: u32,
    /// The instructions of this basic block, with their results.
    known: HashMap<String, Register>,
    called: Vec<String>,
}

/// Appends a line to the text of an emitter.
macro_rules! line {
    ($emitter:expr, $($argument:tt)*) => { $emitter.line(format_args!($($argument)*)) };
}
pub(crate) use line;

impl Emitter {
    pub(crate) fn register(&mut self, class: char) -> Register {
        let count = self.counts.entry(class).or_default();
        *count += 1;
        Register(class, *count)
    }

    pub(crate) fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Writes an instruction with a new register for its result.
    pub(crate) fn set(
        &mut self,
        class: char,
        instruction: &str,
        operands: &[InstructionOperand<'_>],
    ) -> Register {
        let result = self.register(class);
        let operands: Vec<_> = operands.iter().map(ToString::to_string).collect();
        line!(self, "{instruction} {result}, {};", operands.join(", "));
        result
    }

    /// Like [`Emitter::set`], unless the basic block has this value already. Its operands do not change within the block.
    pub(crate) fn value(
        &mut self,
        of: ScalarType,
        instruction: &str,
        operands: &[InstructionOperand<'_>],
    ) -> Register {
        let texts: Vec<_> = operands.iter().map(ToString::to_string).collect();
        let key = format!("{instruction} {}", texts.join(", "));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let result = self.set(of.register(), instruction, operands);
        self.known.insert(key, result);
        result
    }

    /// Calls a function of the library for the type of its first operand.
    pub(crate) fn call(&mut self, name: &str, operands: &[EmittedValue]) -> EmittedValue {
        let Some(of) = operands.first().map(|first| first.of) else {
            return EmittedValue::new(ScalarType::F32, Register('f', 0));
        };
        let function = format!("gpumem_{name}_{}", of.name());
        let texts: Vec<_> = operands.iter().map(|operand| operand.register.to_string()).collect();
        let key = format!("call {function} {}", texts.join(", "));
        if let Some(register) = self.known.get(&key) {
            return EmittedValue::new(of, *register);
        }
        line!(self, "{{");
        let mut names = Vec::new();
        for (index, EmittedValue { of, register, .. }) in operands.iter().enumerate() {
            let bits = of.bits();
            line!(self, ".param .{bits} operand{index};\nst.param.{bits} [operand{index}], {register};");
            names.push(format!("operand{index}"));
        }
        let (bits, raw) = (of.bits(), self.register(of.register()));
        line!(self, ".param .{bits} result;\ncall.uni (result), {function}, ({});", names.join(", "));
        line!(self, "ld.param.{bits} {raw}, [result];\n}}");
        if !self.called.contains(&function) {
            self.called.push(function);
        }
        let register = self.finished(of, raw);
        self.known.insert(key, register);
        EmittedValue::new(of, register)
    }

    /// The result of an operation in the wide type, wrapped or rounded to its type.
    pub(crate) fn finished(&mut self, of: ScalarType, wide: Register) -> Register {
        match of {
            ScalarType::I8 => self.value(of, "cvt.s32.s8", &[&wide]),
            ScalarType::I16 => self.value(of, "cvt.s32.s16", &[&wide]),
            ScalarType::U8 => self.value(of, "and.b32", &[&wide, &255]),
            ScalarType::U16 => self.value(of, "and.b32", &[&wide, &65535]),
            ScalarType::F16 | ScalarType::Bf16 => {
                let bits = self.half_bits(of, wide);
                self.half_value(of, bits)
            }
            _ => wide,
        }
    }

    /// The bits of the nearest number of a type of 16 bits.
    pub(crate) fn half_bits(&mut self, of: ScalarType, wide: Register) -> Register {
        let word = ScalarType::U32;
        if of == ScalarType::F16 {
            let half = self.set('h', "cvt.rn.f16.f32", &[&wide]);
            return self.set('r', "cvt.u32.u16", &[&half]);
        }
        let bits = self.value(word, "mov.b32", &[&wide]);
        let odd = self.value(word, "bfe.u32", &[&bits, &16, &1]);
        let added = self.value(word, "add.u32", &[&odd, &32767]);
        let sum = self.value(word, "add.u32", &[&bits, &added]);
        // NaN stays NaN, whatever its low bits are.
        let is_number = self.value(ScalarType::Bool, "setp.num.f32", &[&wide, &wide]);
        let quiet = self.value(word, "or.b32", &[&bits, &0x0040_0000]);
        let kept = self.value(word, "selp.b32", &[&sum, &quiet, &is_number]);
        self.value(word, "shr.u32", &[&kept, &16])
    }

    /// The number with these bits.
    pub(crate) fn half_value(&mut self, of: ScalarType, bits: Register) -> Register {
        if of == ScalarType::F16 {
            let half = self.set('h', "cvt.u16.u32", &[&bits]);
            return self.set('f', "cvt.f32.f16", &[&half]);
        }
        let high = self.value(ScalarType::U32, "shl.b32", &[&bits, &16]);
        self.value(ScalarType::F32, "mov.b32", &[&high])
    }

    /// Ends the basic block: values from before are written again.
    pub(crate) fn end_block(&mut self) {
        self.known.clear();
    }

    pub(crate) fn label(&mut self, name: &str) -> String {
        self.labels += 1;
        format!("{name}_{}", self.labels)
    }

    /// The text of a module with one kernel, and the functions that it calls. `directives` are those behind the number of threads.
    pub(crate) fn module(
        self,
        name: &str,
        parameters: &[String],
        threads: usize,
        directives: &str,
    ) -> String {
        let mut declarations = String::new();
        for (class, count) in &self.counts {
            let of = match class {
                'f' => "f32",
                'd' => "f64",
                'h' => "b16",
                'r' => "b32",
                'l' => "b64",
                _ => "pred",
            };
            let _ = writeln!(declarations, ".reg .{of} %{class}<{}>;", count + 1);
        }
        format!(
            ".version 7.8\n.target sm_70\n.address_size 64\n{}.visible .entry {name}(\n{}\n)\n.maxntid {threads}, 1, 1\n{directives}{{\n{declarations}{}ret;\n}}\n",
            functions::texts(&self.called),
            parameters.join(",\n"),
            self.text,
        )
    }
}
