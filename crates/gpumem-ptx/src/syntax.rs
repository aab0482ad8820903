//! A module as it is written: variables, functions, instructions. Names of registers and of variables in bodies are resolved. Pure.

use crate::error::Place;
use std::collections::HashMap;
use std::sync::Arc;

/// The type of a register, an element or an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U16x2,
    U32,
    U64,
    S8,
    S16,
    S16x2,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

const TYPES: [(&str, Type); 22] = [
    ("pred", Type::Pred),
    ("b8", Type::B8),
    ("b16", Type::B16),
    ("b32", Type::B32),
    ("b64", Type::B64),
    ("b128", Type::B128),
    ("u8", Type::U8),
    ("u16", Type::U16),
    ("u16x2", Type::U16x2),
    ("u32", Type::U32),
    ("u64", Type::U64),
    ("s8", Type::S8),
    ("s16", Type::S16),
    ("s16x2", Type::S16x2),
    ("s32", Type::S32),
    ("s64", Type::S64),
    ("f16", Type::F16),
    ("f16x2", Type::F16x2),
    ("bf16", Type::Bf16),
    ("bf16x2", Type::Bf16x2),
    ("f32", Type::F32),
    ("f64", Type::F64),
];

impl Type {
    /// The type of this name, without its dot.
    pub(crate) fn of(name: &str) -> Option<Self> {
        TYPES.iter().find(|(known, _)| *known == name).map(|(_, of)| *of)
    }

    /// The size in bytes. A predicate is counted as one.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Pred | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U16x2 | Self::S16x2 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// True for whole numbers, pairs not included.
    pub(crate) fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// True if a register of the type `declared` holds values of this type: the sizes are equal, and one is not a fraction and the other an
    /// integer.
    pub(crate) fn is_of_register(self, declared: Self) -> bool {
        (declared == Self::Pred) == (self == Self::Pred)
            && declared.bytes() == self.bytes()
            && !(declared.is_float() && self.is_integer() || declared.is_integer() && self.is_float())
            && (self == declared || !self.is_pair() || declared.is_bits())
    }

    /// True for two numbers in one register.
    pub(crate) fn is_pair(self) -> bool {
        matches!(self, Self::U16x2 | Self::S16x2 | Self::F16x2 | Self::Bf16x2)
    }

    /// True if the low part of a register of the type `declared` may hold a value of this type. A fraction has all bits of a register for
    /// fractions.
    pub(crate) fn is_in_register(self, declared: Self) -> bool {
        (declared == Self::Pred) == (self == Self::Pred)
            && declared.bytes() >= self.bytes()
            && !(declared.is_float() && self.is_integer() || declared.is_integer() && self.is_float())
            && !(declared.is_float() && self.is_float() && declared.bytes() != self.bytes())
    }

    /// True for bits without a meaning.
    pub(crate) fn is_bits(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64 | Self::B128)
    }

    /// True for numbers with a fraction, packed pairs not included.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

/// A kind of memory that a variable or an access names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    Param,
}

impl Space {
    /// The space of this name, without its dot.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "global" => Some(Self::Global),
            "const" => Some(Self::Const),
            "shared" | "shared::cta" => Some(Self::Shared),
            "local" => Some(Self::Local),
            "param" | "param::entry" | "param::func" => Some(Self::Param),
            _ => None,
        }
    }
}

/// Which texts of a link see a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// Only its own.
    Internal,
    Visible,
    /// All. Of several definitions one counts.
    Weak,
    /// It is a declaration.
    Extern,
}

/// A variable in memory, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// The number of its text.
    pub(crate) unit: u32,
    pub(crate) linkage: Linkage,
    pub(crate) space: Space,
    pub(crate) element: Type,
    pub(crate) align_bytes: u64,
    pub(crate) size_bytes: u64,
    /// The distance between elements, if it has one index.
    pub(crate) index_bytes: Option<u64>,
    /// Without a size of its own, or without a definition in this text.
    pub(crate) is_extern: bool,
    /// What it is, if no kernel that names it can run.
    pub(crate) unsupported: Option<&'static str>,
    pub(crate) initial: Vec<Datum>,
    pub(crate) place: Place,
}

/// The type of a variable, a parameter or a register.
#[derive(Clone, Copy)]
pub(crate) struct VariableType {
    pub(crate) element: Type,
    /// The elements of a vector.
    pub(crate) vector: u64,
    /// The alignment, if it is stated.
    pub(crate) align_bytes: Option<u64>,
    /// What it is, if no kernel that names such a variable can run.
    pub(crate) unsupported: Option<&'static str>,
}

impl Variable {
    pub(crate) fn shape(&self) -> Shape {
        let is_array = self.index_bytes.is_some() || self.size_bytes != self.element.bytes().into();
        let (element, size_bytes) = (self.element, self.size_bytes);
        Shape { element, size_bytes, align_bytes: is_array.then_some(self.align_bytes) }
    }

    /// The distance of an element from the beginning.
    pub(crate) fn at(&self, index: Option<u64>) -> Option<i64> {
        index?.checked_mul(self.index_bytes?)?.try_into().ok()
    }
}

/// What an argument, a parameter or a result holds: a number, or an array.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    element: Type,
    size_bytes: u64,
    /// Of an array.
    align_bytes: Option<u64>,
}

impl Shape {
    pub(crate) fn of_type(element: Type) -> Self {
        Self { element, size_bytes: element.bytes().into(), align_bytes: None }
    }

    pub(crate) fn element(self) -> Type {
        self.element
    }

    pub(crate) fn bytes(self) -> u64 {
        self.size_bytes
    }

    /// True if one may be passed as the other.
    pub(crate) fn fits(self, other: Self) -> bool {
        self.size_bytes == other.size_bytes
            && self.align_bytes == other.align_bytes
            && (self.align_bytes.is_some() || self.element.is_of_register(other.element))
    }
}

/// A part of a variable's initial contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datum {
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u32,
    pub(crate) value: DatumValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatumValue {
    Bits(u64),
    /// The address of a variable or function plus a distance, without its lowest bits.
    Address {
        name: String,
        distance: i64,
        shift: u32,
    },
}

/// A parameter or a result of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Formal {
    Register(u32),
    /// The number of a variable of the function.
    Variable(u32),
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub(crate) struct Function<'t> {
    pub(crate) name: &'t str,
    /// The number of its text.
    pub(crate) unit: u32,
    pub(crate) linkage: Linkage,
    pub(crate) is_entry: bool,
    pub(crate) results: Vec<Formal>,
    pub(crate) parameters: Vec<Formal>,
    /// The types of its registers.
    pub(crate) registers: Vec<Type>,
    /// Its parameters, and the variables in its body.
    pub(crate) variables: Vec<Variable>,
    /// `None` for a declaration.
    pub(crate) body: Option<Vec<Statement<'t>>>,
    /// Numbers behind directives such as `.maxntid`.
    pub(crate) limits: Vec<(&'t str, Vec<u64>)>,
    pub(crate) place: Place,
}

impl Function<'_> {
    /// The bytes of all parameters.
    pub(crate) fn parameter_bytes(&self) -> u64 {
        let shapes = self.parameters.iter().filter_map(|formal| self.shape_of(*formal));
        shapes.fold(0, |sum, shape| sum.saturating_add(shape.size_bytes))
    }

    /// What a parameter or result holds.
    pub(crate) fn shape_of(&self, formal: Formal) -> Option<Shape> {
        match formal {
            Formal::Register(register) => Some(Shape::of_type(*self.registers.get(register as usize)?)),
            Formal::Variable(variable) => Some(self.variables.get(variable as usize)?.shape()),
        }
    }

    /// True if the parameters and results are as many as those of another function, and alike.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let alike = |mine: &[Formal], theirs: &[Formal]| {
            mine.len() == theirs.len()
                && mine.iter().zip(theirs).all(|(mine, theirs)| {
                    let shapes = self.shape_of(*mine).zip(other.shape_of(*theirs));
                    shapes.is_some_and(|(mine, theirs)| mine.fits(theirs))
                })
        };
        alike(&self.parameters, &other.parameters) && alike(&self.results, &other.results)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Statement<'t> {
    /// A label in a scope.
    Label(&'t str, u32, Place),
    /// A label of what a pointer to a function points to.
    Prototype(&'t str, u32, Box<Function<'t>>),
    /// A label of a list of labels, or of functions.
    Targets(&'t str, u32, Vec<&'t str>),
    Instruction(Instruction<'t>),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction<'t> {
    pub(crate) opcode: &'t str,
    /// A predicate, and whether it is negated.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) operands: Vec<Operand<'t>>,
    pub(crate) place: Place,
    pub(crate) scope: u32,
    /// The number of the place that `.loc` states.
    pub(crate) source_place: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'t> {
    Register(u32),
    /// A register plus a constant.
    Sum(u32, i64),
    /// A negated predicate.
    Not(u32),
    /// A predicate or result, and a second one.
    Pair(Option<u32>, Option<u32>),
    Special(&'t str),
    Integer(u64),
    Single(u32),
    Double(u64),
    /// A variable of the function, by its number, plus a distance.
    Variable(u32, i64),
    /// A name of the module or a label, plus a distance.
    Symbol(&'t str, i64),
    Vector(Vec<Operand<'t>>),
    /// An element of a variable; `None` for an index that is no constant.
    Element(&'t str, Option<u64>),
    /// In brackets: a base plus a distance.
    Address(Box<Operand<'t>>, i64),
    /// In parentheses.
    List(Vec<Operand<'t>>),
    /// `_`
    Sink,
}

/// A source file that a text names: the number of the text, and that of the file in it.
pub(crate) type SourceFile = (u32, u32);

/// A place in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourcePlace {
    pub(crate) file: SourceFile,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// What a text is compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The compute capability, 70 for `sm_70`.
    pub(crate) capability: u32,
    /// True for `sm_90a`, which has more than `sm_90`.
    pub(crate) is_specific: bool,
}

/// A whole text, or several that are linked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source<'t> {
    pub(crate) version: (u32, u32),
    pub(crate) target: Target,
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function<'t>>,
    /// The names of source files.
    pub(crate) files: HashMap<SourceFile, &'t str>,
    /// What `.loc` states. In a function that is inlined, with the number of the place of the call, which is smaller than its own.
    pub(crate) source_places: Arc<Vec<(SourcePlace, Option<u32>)>>,
    /// Other names of functions: the number of the text, the name, and the name that it stands for.
    pub(crate) aliases: Vec<(u32, &'t str, &'t str)>,
    /// The parents of the scopes of labels. Scope 0 has none.
    pub(crate) scopes: Vec<u32>,
}
