//! Text to [`Source`].

mod constant;
mod text;

use crate::error::{LinkError, Place, PtxError, short};
use crate::syntax::{
    Datum, DatumValue, Formal, Function, Instruction, Linkage, Operand, Source, SourcePlace, Space,
    Statement, Target, Type, Variable, VariableType,
};
use constant::{ConstantValue, OPERATORS};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use text::{Word, Words};

type Result<T> = core::result::Result<T, PtxError>;

/// The newest version that is known.
pub(crate) const VERSION_MAX: (u32, u32) = (9, 0);

/// Parses the texts of a module.
pub(crate) fn parse<'t>(texts: &[&'t str]) -> core::result::Result<Source<'t>, LinkError> {
    let mut source = Source::default();
    for (input, text) in texts.iter().enumerate() {
        let mut parser = Parser {
            words: Words::new(text),
            unit: input as u32,
            source,
            scopes: Vec::new(),
            source_place: None,
            source_places: HashMap::new(),
            constant_bytes: 0,
            functions: HashMap::new(),
            has_address_size: false,
        };
        parser.module().map_err(|error| LinkError { input, error })?;
        source = parser.source;
    }
    Ok(source)
}

struct Parser<'t> {
    words: Words<'t>,
    /// The number of the text.
    unit: u32,
    source: Source<'t>,
    /// The open scopes of the body that is read.
    scopes: Vec<Scope<'t>>,
    /// The number of what the last `.loc` of the body stated.
    source_place: Option<u32>,
    /// The last number of each place in the body.
    source_places: HashMap<SourcePlace, u32>,
    /// The constant memory of the text, so far.
    constant_bytes: u64,
    /// The last function of each name in the text.
    functions: HashMap<&'t str, usize>,
    has_address_size: bool,
}

/// The names of a pair of braces.
#[derive(Default)]
struct Scope<'t> {
    number: u32,
    names: HashMap<&'t str, Named>,
    /// From `.reg .b32 %r<8>`: registers get their numbers when they are first named. With the elements if they are vectors.
    ranges: HashMap<&'t str, (u64, Type, u32)>,
    /// The least number behind each beginning of the declared names that end with one.
    numbered: HashMap<&'t str, u64>,
    labels: HashSet<&'t str>,
}

#[derive(Clone, Copy)]
enum Named {
    Register(u32),
    /// Registers in a row: the first one, and their number.
    Vector(u32, u32),
    Variable(u32),
}

impl<'t> Parser<'t> {
    fn next(&mut self) -> Result<(Word<'t>, Place)> {
        self.words.next()
    }

    fn peek(&self) -> Result<(Word<'t>, Place)> {
        self.words.clone().next()
    }

    fn take(&mut self, mark: u8) -> Result<bool> {
        let is_next = self.peek()?.0 == Word::Mark(mark);
        if is_next {
            self.next()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, mark: u8) -> Result<()> {
        match self.next()? {
            (Word::Mark(found), _) if found == mark => Ok(()),
            (found, place) => Err(PtxError::syntax(
                place,
                format!("`{}` is expected, not {}", char::from(mark), name_of(found)),
            )),
        }
    }

    fn name(&mut self) -> Result<(&'t str, Place)> {
        match self.next()? {
            (Word::Name(name), place) => Ok((name, place)),
            (found, place) => {
                Err(PtxError::syntax(place, format!("a name is expected, not {}", name_of(found))))
            }
        }
    }

    fn integer(&mut self) -> Result<i64> {
        let is_negative = self.take(b'-')?;
        match self.next()? {
            (Word::Integer(value), _) if is_negative => Ok((value as i64).wrapping_neg()),
            (Word::Integer(value), _) => Ok(value as i64),
            (found, place) => {
                Err(PtxError::syntax(place, format!("an integer is expected, not {}", name_of(found))))
            }
        }
    }

    fn module(&mut self) -> Result<()> {
        self.version()?;
        let (word, place) = self.name()?;
        if word != ".target" {
            return Err(PtxError::syntax(place, "`.target` is expected behind `.version`"));
        }
        let (target, place) = self.name()?;
        let stated = target_of(target)
            .ok_or_else(|| PtxError::syntax(place, format!("`{}` is no target", short(target))))?;
        self.source.target = self.source.target.max(stated);
        while self.take(b',')? {
            let (option, place) = self.name()?;
            if !TARGET_OPTIONS.contains(&option) {
                return Err(PtxError::syntax(place, format!("`{}` is no option of a target", short(option))));
            }
        }
        loop {
            let (word, place) = self.next()?;
            match word {
                Word::End => return self.check_defined(),
                Word::Mark(b';') => {}
                Word::Name(directive) => self.directive(directive, place)?,
                found => {
                    return Err(PtxError::syntax(
                        place,
                        format!("{} is no beginning of a directive", name_of(found)),
                    ));
                }
            }
        }
    }

    /// What is declared in a text is defined in it, or has another name, or is `.extern`.
    fn check_defined(&self) -> Result<()> {
        let own = || self.source.functions.iter().filter(|function| function.unit == self.unit);
        let defined: HashSet<&str> =
            own().filter(|function| function.body.is_some()).map(|function| function.name).collect();
        let aliases: HashSet<&str> = self
            .source
            .aliases
            .iter()
            .filter(|(unit, ..)| *unit == self.unit)
            .map(|(_, alias, _)| *alias)
            .collect();
        let is_missing = |function: &&Function<'_>| {
            function.linkage != Linkage::Extern
                && !defined.contains(function.name)
                && !aliases.contains(function.name)
        };
        match own().find(is_missing) {
            Some(Function { name, place, .. }) => {
                let what = format!(
                    "`{}` is declared and not defined; with `.extern`, another text may define it",
                    short(name)
                );
                Err(PtxError::syntax(*place, what))
            }
            None => Ok(()),
        }
    }

    fn version(&mut self) -> Result<()> {
        let (word, place) = self.next()?;
        if word != Word::Name(".version") {
            return Err(PtxError::syntax(place, "a module begins with `.version`"));
        }
        let (word, place) = self.words.unsplit()?;
        let parts =
            word.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let stated =
            parts.ok_or_else(|| PtxError::syntax(place, format!("`{}` is no version", short(word))))?;
        if stated > VERSION_MAX {
            return Err(PtxError::version(place, stated, VERSION_MAX));
        }
        self.source.version = self.source.version.max(stated);
        Ok(())
    }

    fn directive(&mut self, directive: &'t str, place: Place) -> Result<()> {
        match directive {
            ".address_size" if self.has_address_size => {
                Err(PtxError::syntax(place, "the address size is stated twice"))
            }
            ".address_size" => match self.integer()? {
                64 => {
                    self.has_address_size = true;
                    Ok(())
                }
                other => Err(PtxError::unsupported(place, format!("an address size of {other}"))),
            },
            ".file" => self.file(),
            ".section" => {
                self.name()?;
                self.expect(b'{')?;
                while !matches!(self.next()?.0, Word::Mark(b'}') | Word::End) {}
                Ok(())
            }
            ".pragma" => self.pragma(),
            ".alias" => {
                let (alias, place) = self.name()?;
                self.expect(b',')?;
                let (name, name_place) = self.name()?;
                self.check_alias((alias, place), (name, name_place))?;
                self.source.aliases.push((self.unit, alias, name));
                self.expect(b';')
            }
            ".extern" | ".visible" | ".weak" | ".common" => {
                let (next, place) = self.name()?;
                if directive == ".common" && next != ".global" {
                    return Err(PtxError::syntax(place, "`.common` is for variables in global memory"));
                }
                let linkage = match directive {
                    ".extern" => Linkage::Extern,
                    ".visible" => Linkage::Visible,
                    _ => Linkage::Weak,
                };
                self.definition(next, linkage, place)
            }
            _ => self.definition(directive, Linkage::Internal, place),
        }
    }

    /// Another name is declared before, as a function that has no body and is like the one that it stands for.
    fn check_alias(
        &self,
        (alias, place): (&'t str, Place),
        (name, name_place): (&'t str, Place),
    ) -> Result<()> {
        let named = |name| self.functions.get(name).and_then(|number| self.source.functions.get(*number));
        let undeclared = |name, place| PtxError::syntax(place, format!("`{}` is not declared", short(name)));
        let declared = named(alias).ok_or_else(|| undeclared(alias, place))?;
        let function = named(name).ok_or_else(|| undeclared(name, name_place))?;
        let what = match () {
            () if declared.body.is_some() => format!("`{}` is defined twice", short(alias)),
            () if function.is_entry => format!("`{}` is a kernel, which has no other name", short(name)),
            () if !declared.is_like(function) => {
                format!("`{}` and `{}` have other parameters", short(alias), short(name))
            }
            () => return Ok(()),
        };
        Err(PtxError::syntax(place, what))
    }

    /// The number and the name of a source.
    fn file(&mut self) -> Result<()> {
        let number = self.integer()?;
        if let (Word::Text(name), _) = self.next()?
            && let Ok(number) = u32::try_from(number)
        {
            self.source.files.insert((self.unit, number), name);
        }
        while self.take(b',')? {
            self.integer()?;
        }
        Ok(())
    }

    fn pragma(&mut self) -> Result<()> {
        loop {
            match self.next()? {
                (Word::Text(_), _) => {}
                (found, place) => {
                    let what = format!("a text in quotes is expected, not {}", name_of(found));
                    return Err(PtxError::syntax(place, what));
                }
            }
            if !self.take(b',')? {
                return self.expect(b';');
            }
        }
    }

    fn definition(&mut self, word: &'t str, linkage: Linkage, place: Place) -> Result<()> {
        match word {
            ".func" | ".entry" => self.function(word == ".entry", linkage, place),
            ".global" | ".const" | ".shared" => {
                let space = Space::of(&word[1..]).unwrap_or(Space::Global);
                let variables = self.variables(space, linkage)?;
                for (name, variable) in
                    variables.iter().filter(|(_, variable)| variable.space == Space::Const)
                {
                    let bytes = self.constant_bytes.next_multiple_of(variable.align_bytes.max(1));
                    self.constant_bytes = bytes.saturating_add(variable.size_bytes);
                    if self.constant_bytes > CONSTANT_BYTES_MAX {
                        let what = format!(
                            "with `{}`, constant memory has more than {CONSTANT_BYTES_MAX} bytes",
                            short(name)
                        );
                        return Err(PtxError::syntax(variable.place, what));
                    }
                }
                self.source.variables.extend(variables.into_iter().map(|(_, variable)| variable));
                Ok(())
            }
            other => Err(PtxError::unsupported(place, format!("the directive `{}`", short(other)))),
        }
    }

    /// The variables of a declaration, up to its end.
    fn variables(&mut self, space: Space, linkage: Linkage) -> Result<Vec<(&'t str, Variable)>> {
        let of = self.variable_type()?;
        let mut found = Vec::new();
        loop {
            let (name, place) = self.name()?;
            let (mut variable, parts) = self.sized(name, place, space, of)?;
            variable.linkage = linkage;
            variable.is_extern |= linkage == Linkage::Extern;
            let is_initial = self.take(b'=')?;
            let is_extern = linkage == Linkage::Extern;
            match () {
                () if variable.element == Type::Pred => {
                    return Err(PtxError::syntax(place, "a predicate is in no memory"));
                }
                () if is_initial && (is_extern || !matches!(space, Space::Global | Space::Const)) => {
                    let what = format!("`{}` has no initial contents here", short(name));
                    return Err(PtxError::syntax(place, what));
                }
                () if variable.size_bytes == 0 && !is_extern && !is_initial && of.unsupported.is_none() => {
                    return Err(PtxError::syntax(place, format!("`{}` has no size", short(name))));
                }
                () => {}
            }
            if is_initial {
                match of.unsupported {
                    // Settings by name.
                    Some(TEXTURE) => while !matches!(self.next()?.0, Word::Mark(b'}') | Word::End) {},
                    _ => self.initial(&mut variable, &parts, &mut 0, 0)?,
                }
            }
            found.push((name, variable));
            if !self.take(b',')? {
                break;
            }
        }
        self.expect(b';')?;
        Ok(found)
    }

    /// The type of a variable, a parameter or a register.
    fn variable_type(&mut self) -> Result<VariableType> {
        let mut of = VariableType { element: Type::B64, vector: 1, align_bytes: None, unsupported: None };
        loop {
            let (word, place) = self.name()?;
            match word {
                ".align" => of.align_bytes = Some(self.alignment(place)?),
                ".v2" => of.vector = 2,
                ".v4" => of.vector = 4,
                ".attribute" => {
                    self.expect(b'(')?;
                    while !matches!(self.next()?.0, Word::Mark(b')') | Word::End) {}
                    of.unsupported = Some("a variable with an attribute");
                }
                ".texref" | ".surfref" | ".samplerref" => {
                    of.unsupported = Some(TEXTURE);
                    return Ok(of);
                }
                _ => {
                    let element = word.strip_prefix('.').and_then(Type::of);
                    of.element = element.ok_or_else(|| {
                        PtxError::unsupported(place, format!("a variable of `{}`", short(word)))
                    })?;
                    if matches!(of.element, Type::Bf16 | Type::Bf16x2 | Type::U16x2 | Type::S16x2) {
                        let what = format!("`{}` is a type of instructions alone", short(word));
                        return Err(PtxError::syntax(place, what));
                    }
                    if of.vector * u64::from(of.element.bytes()) > 16
                        || of.vector > 1 && of.element == Type::Pred
                    {
                        return Err(PtxError::syntax(
                            place,
                            "a vector has 128 bits at most, and no predicates",
                        ));
                    }
                    if self.peek()?.0 == Word::Name(".align") {
                        self.next()?;
                        of.align_bytes = Some(self.alignment(place)?);
                    }
                    return Ok(of);
                }
            }
        }
    }

    fn alignment(&mut self, place: Place) -> Result<u64> {
        let stated = self.integer()? as u64;
        if stated.is_power_of_two() && stated <= 1 << 20 {
            Ok(stated)
        } else {
            Err(PtxError::syntax(place, format!("{stated} is no alignment")))
        }
    }

    /// A variable whose name was read: the sizes of its array. Then the bytes of a part of it, of a part of that, and so on.
    fn sized(
        &mut self,
        name: &'t str,
        place: Place,
        space: Space,
        VariableType { element, vector, align_bytes, unsupported }: VariableType,
    ) -> Result<(Variable, Vec<u64>)> {
        let element_bytes = u64::from(element.bytes());
        let mut count = vector;
        let mut is_open = false;
        let mut lens = Vec::new();
        while self.take(b'[')? {
            if self.take(b']')? {
                is_open = true;
                lens.push(0);
                continue;
            }
            let len = self.integer()? as u64;
            lens.push(len);
            count = count
                .checked_mul(len)
                .filter(|count| *count < 1 << 48)
                .ok_or_else(|| PtxError::syntax(place, format!("`{}` is too large", short(name))))?;
            self.expect(b']')?;
        }
        let index_bytes = (lens.len() == 1).then_some(element_bytes * vector);
        let mut part_bytes = element_bytes * vector;
        let mut parts: Vec<u64> = if vector > 1 { vec![element_bytes] } else { Vec::new() };
        for len in lens.into_iter().rev() {
            parts.push(part_bytes);
            part_bytes = part_bytes.saturating_mul(len);
        }
        parts.reverse();
        let variable = Variable {
            name: name.to_string(),
            unit: self.unit,
            linkage: Linkage::Internal,
            space,
            element,
            align_bytes: align_bytes.unwrap_or(element_bytes * vector),
            size_bytes: if is_open { 0 } else { count * element_bytes },
            index_bytes,
            is_extern: is_open,
            unsupported,
            initial: Vec::new(),
            place,
        };
        Ok((variable, parts))
    }

    /// Initial contents from an offset on. `parts` are the bytes of parts of the variable, each in the one before.
    fn initial(
        &mut self,
        variable: &mut Variable,
        parts: &[u64],
        offset_bytes: &mut u64,
        depth: usize,
    ) -> Result<()> {
        let (_, place) = self.peek()?;
        let is_list = self.peek()?.0 == Word::Mark(b'{');
        if depth == 0 && is_list == parts.is_empty() {
            return Err(PtxError::syntax(
                place,
                "initial contents of an array are in braces, and of a number are not",
            ));
        }
        if self.take(b'{')? {
            if depth > BRACES_MAX {
                return Err(PtxError::syntax(place, "braces are nested too deeply"));
            }
            let start = *offset_bytes;
            while !self.take(b'}')? {
                self.initial(variable, parts, offset_bytes, depth + 1)?;
                if !self.take(b',')? {
                    self.expect(b'}')?;
                    break;
                }
            }
            // As in C, what a pair of braces leaves out is zero.
            if let Some(bytes) = depth.checked_sub(1).and_then(|depth| parts.get(depth)) {
                let end = start.saturating_add(*bytes);
                if *offset_bytes > end {
                    return Err(PtxError::syntax(place, "more initial values than elements"));
                }
                *offset_bytes = end;
                if variable.is_extern {
                    variable.size_bytes = variable.size_bytes.max(end);
                }
            }
            return Ok(());
        }
        let size_bytes = variable.element.bytes();
        let address =
            |name: &str, distance| DatumValue::Address { name: name.to_string(), distance, shift: 0 };
        let value = match self.operand()? {
            // One byte of an address.
            Operand::Integer(mask) if self.take(b'(')? => {
                let (name, distance) = match self.operand()? {
                    Operand::Symbol("generic", 0) => self.generic()?,
                    Operand::Symbol(name, distance) => (name, distance),
                    _ => return Err(PtxError::syntax(place, "a name is expected behind a mask")),
                };
                self.expect(b')')?;
                let shift = mask.trailing_zeros();
                if shift % 8 != 0 || mask >> (shift % 64) != 0xff {
                    return Err(PtxError::syntax(place, format!("{mask:#x} is no mask of a byte")));
                }
                DatumValue::Address { name: name.to_string(), distance, shift }
            }
            Operand::Integer(_) if variable.element.is_float() => {
                return Err(PtxError::syntax(place, "an integer is no value of this type"));
            }
            Operand::Single(_) | Operand::Double(_)
                if !(variable.element.is_float() || variable.element.is_bits()) =>
            {
                return Err(PtxError::syntax(place, "a fraction is no value of this type"));
            }
            Operand::Single(_) | Operand::Double(_)
                if variable.element.bytes() < 4 && variable.element.is_float() =>
            {
                return Err(PtxError::syntax(place, "a variable of this type has no initial contents"));
            }
            Operand::Integer(bits) => DatumValue::Bits(bits),
            Operand::Single(bits) => DatumValue::Bits(single_as(variable.element, bits)),
            Operand::Double(bits) => DatumValue::Bits(double_as(variable.element, bits)),
            Operand::Symbol("generic", 0) => {
                let (name, distance) = self.generic()?;
                address(name, distance)
            }
            Operand::Symbol(name, distance) => address(name, distance),
            _ => return Err(PtxError::syntax(place, "a number or the name of a variable is expected")),
        };
        if matches!(value, DatumValue::Address { .. }) && !variable.element.is_integer() {
            return Err(PtxError::syntax(place, "an address is no value of this type"));
        }
        let end = offset_bytes.saturating_add(size_bytes.into());
        if end > variable.size_bytes {
            if !variable.is_extern {
                return Err(PtxError::syntax(place, "more initial values than elements"));
            }
            variable.size_bytes = end;
        }
        variable.initial.push(Datum { offset_bytes: *offset_bytes, size_bytes, value });
        *offset_bytes = end;
        Ok(())
    }

    /// The name in parentheses behind `generic`, and a distance.
    fn generic(&mut self) -> Result<(&'t str, i64)> {
        self.expect(b'(')?;
        let (name, _) = self.name()?;
        self.expect(b')')?;
        Ok((name, self.distance()?))
    }

    fn empty(&self, is_entry: bool, linkage: Linkage, place: Place) -> Function<'t> {
        Function {
            name: "",
            unit: self.unit,
            linkage,
            is_entry,
            results: Vec::new(),
            parameters: Vec::new(),
            registers: Vec::new(),
            variables: Vec::new(),
            body: None,
            limits: Vec::new(),
            place,
        }
    }

    fn function(&mut self, is_entry: bool, linkage: Linkage, place: Place) -> Result<()> {
        let mut function = self.empty(is_entry, linkage, place);
        self.scopes.clear();
        self.open_scope(place)?;
        if self.peek()?.0 == Word::Mark(b'(') && !is_entry {
            function.results = self.formals(&mut function)?;
        }
        (function.name, _) = self.name()?;
        if self.peek()?.0 == Word::Mark(b'(') {
            function.parameters = self.formals(&mut function)?;
        }
        let is_memory = |formal: &Formal| matches!(formal, Formal::Variable(_));
        if function.results.len() > 1 && function.results.iter().any(is_memory) {
            return Err(PtxError::syntax(place, "of several results, each is a register"));
        }
        if function.parameter_bytes() > PARAMETER_BYTES_MAX {
            return Err(PtxError::syntax(place, "the parameters are too large"));
        }
        loop {
            let (word, place) = self.next()?;
            match word {
                Word::Mark(b';') => break,
                Word::Mark(b'{') if linkage == Linkage::Extern => {
                    return Err(PtxError::syntax(place, "a function that is `.extern` has a body"));
                }
                Word::Mark(b'{') => {
                    function.body = Some(self.body(&mut function)?);
                    break;
                }
                Word::Name(".pragma") => self.pragma()?,
                Word::Name(directive) if DIRECTIVES[usize::from(is_entry)].contains(&directive) => {
                    let mut numbers = Vec::new();
                    while let Word::Integer(number) = self.peek()?.0 {
                        self.next()?;
                        numbers.push(number);
                        if !self.take(b',')? {
                            break;
                        }
                    }
                    let is_of_block = matches!(directive, ".maxntid" | ".reqntid");
                    let counts = if is_of_block { 1..=3 } else { 0..=3 };
                    if !counts.contains(&numbers.len()) || is_of_block && numbers.contains(&0) {
                        let what = format!("`{directive}` has another number of threads");
                        return Err(PtxError::syntax(place, what));
                    }
                    let other = if directive == ".maxntid" { ".reqntid" } else { ".maxntid" };
                    if is_of_block && function.limits.iter().any(|(name, _)| *name == other) {
                        let what = format!("`{directive}` and `{other}` are stated");
                        return Err(PtxError::syntax(place, what));
                    }
                    function.limits.push((directive, numbers));
                }
                Word::Name(directive) if directive.starts_with('.') => {
                    let what = format!("the directive `{}` of a function", short(directive));
                    return Err(PtxError::unsupported(place, what));
                }
                found => {
                    return Err(PtxError::syntax(
                        place,
                        format!("a body is expected, not {}", name_of(found)),
                    ));
                }
            }
        }
        let earlier = self.functions.insert(function.name, self.source.functions.len());
        let earlier = earlier.and_then(|number| self.source.functions.get(number));
        if earlier.is_some_and(|earlier| earlier.is_entry == is_entry && !earlier.is_like(&function)) {
            let what = format!("`{}` is declared with other parameters", short(function.name));
            return Err(PtxError::syntax(place, what));
        }
        self.source.functions.push(function);
        Ok(())
    }

    /// Parameters in parentheses.
    fn formals(&mut self, function: &mut Function<'t>) -> Result<Vec<Formal>> {
        self.expect(b'(')?;
        let mut formals = Vec::new();
        while !self.take(b')')? {
            let (kind, place) = self.name()?;
            let types = self.variable_type()?;
            // What a pointer points to.
            while let Word::Name(".ptr" | ".global" | ".shared" | ".const" | ".local" | ".align") =
                self.peek()?.0
            {
                if self.next()?.0 == Word::Name(".align") {
                    self.integer()?;
                }
            }
            let (name, name_place) = self.name()?;
            formals.push(match kind {
                ".param" => {
                    let (mut variable, _) = self.sized(name, name_place, Space::Param, types)?;
                    if variable.size_bytes > PARAMETER_BYTES_MAX {
                        return Err(PtxError::syntax(name_place, "a parameter is too large"));
                    }
                    if variable.align_bytes > 128 {
                        let what = format!("an alignment of {} bytes of a parameter", variable.align_bytes);
                        return Err(PtxError::unsupported(name_place, what));
                    }
                    if variable.element == Type::Pred {
                        return Err(PtxError::syntax(name_place, "a predicate is in no memory"));
                    }
                    variable.is_extern = false;
                    Formal::Variable(self.declare_variable(function, variable, name)?)
                }
                ".reg" if !function.is_entry => {
                    let number = function.registers.len() as u32;
                    function.registers.push(types.element);
                    self.declare(name, Named::Register(number), name_place)?;
                    Formal::Register(number)
                }
                _ => return Err(PtxError::syntax(place, "a parameter is expected")),
            });
            if !self.take(b',')? {
                self.expect(b')')?;
                break;
            }
        }
        Ok(formals)
    }

    fn declare_variable(
        &mut self,
        function: &mut Function<'t>,
        variable: Variable,
        name: &'t str,
    ) -> Result<u32> {
        let number = function.variables.len() as u32;
        let place = variable.place;
        function.variables.push(variable);
        self.declare(name, Named::Variable(number), place)?;
        Ok(number)
    }

    /// Adds a name to the innermost braces, which do not have it yet.
    fn declare(&mut self, name: &'t str, named: Named, place: Place) -> Result<()> {
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        let is_of_range = numbers(name).any(|(prefix, number)| {
            scope.numbered.entry(prefix).and_modify(|least| *least = number.min(*least)).or_insert(number);
            scope.ranges.get(prefix).is_some_and(|(count, ..)| number < *count)
        });
        let is_known = scope.names.insert(name, named).is_some() || scope.labels.contains(name);
        // Parameters of a declaration may have no names.
        if (is_known || is_of_range) && name != "_" { Err(declared_twice(name, place)) } else { Ok(()) }
    }

    fn open_scope(&mut self, place: Place) -> Result<()> {
        if self.scopes.len() > SCOPES_MAX {
            return Err(PtxError::syntax(place, "braces are nested too deeply"));
        }
        let number = self.source.scopes.len() as u32;
        self.source.scopes.push(self.scopes.last().map_or(number, |scope| scope.number));
        self.scopes.push(Scope { number, ..Scope::default() });
        Ok(())
    }

    fn scope(&self) -> u32 {
        self.scopes.last().map_or(0, |scope| scope.number)
    }

    fn body(&mut self, function: &mut Function<'t>) -> Result<Vec<Statement<'t>>> {
        let mut statements = Vec::new();
        // The parameters are names of the body.
        let outer = self.scopes.len() - 1;
        self.source_place = None;
        self.source_places.clear();
        while self.scopes.len() > outer {
            let (word, place) = self.next()?;
            match word {
                Word::Mark(b'{') => self.open_scope(place)?,
                Word::Mark(b'}') => {
                    self.scopes.pop();
                }
                Word::Mark(b';') => {}
                Word::Mark(b'@') => {
                    let is_negated = self.take(b'!')?;
                    let (name, guard_place) = self.name()?;
                    let Some(Named::Register(guard)) = self.resolve(function, name) else {
                        let what = format!("`{}` is no predicate", short(name));
                        return Err(PtxError::syntax(guard_place, what));
                    };
                    let (opcode, place) = self.name()?;
                    let instruction = self.instruction(function, opcode, Some((guard, is_negated)), place)?;
                    statements.push(Statement::Instruction(instruction));
                }
                Word::Name(directive) if directive.starts_with('.') => match directive {
                    ".loc" => self.location()?,
                    ".pragma" => self.pragma()?,
                    ".reg" => self.registers(function)?,
                    ".local" | ".shared" | ".param" | ".global" | ".const" => {
                        let space = Space::of(&directive[1..]).unwrap_or(Space::Local);
                        for (name, variable) in self.variables(space, Linkage::Internal)? {
                            self.declare_variable(function, variable, name)?;
                        }
                    }
                    other => {
                        return Err(PtxError::unsupported(
                            place,
                            format!("the directive `{}`", short(other)),
                        ));
                    }
                },
                Word::Name(name) => {
                    if self.take(b':')? {
                        statements.push(self.label(name, place)?);
                    } else {
                        let instruction = self.instruction(function, name, None, place)?;
                        statements.push(Statement::Instruction(instruction));
                    }
                }
                found => {
                    return Err(PtxError::syntax(
                        place,
                        format!("an instruction is expected, not {}", name_of(found)),
                    ));
                }
            }
        }
        Ok(statements)
    }

    /// A label, or a list that has its name.
    fn label(&mut self, name: &'t str, place: Place) -> Result<Statement<'t>> {
        let scope = self.scope();
        match self.peek()? {
            (Word::Name(".branchtargets" | ".calltargets"), _) => {
                self.next()?;
                let mut targets = vec![self.name()?.0];
                while self.take(b',')? {
                    targets.push(self.name()?.0);
                }
                self.expect(b';')?;
                Ok(Statement::Targets(name, scope, targets))
            }
            (Word::Name(".callprototype"), _) => {
                self.next()?;
                Ok(Statement::Prototype(name, scope, Box::new(self.prototype(place)?)))
            }
            _ => {
                let is_taken = self.scopes.last_mut().is_some_and(|scope| {
                    scope.labels.insert(name);
                    let is_of_range = numbers(name).any(|(prefix, _)| scope.ranges.contains_key(prefix));
                    scope.names.contains_key(name) && !is_of_range
                });
                if is_taken {
                    return Err(declared_twice(name, place));
                }
                Ok(Statement::Label(name, scope, place))
            }
        }
    }

    /// The results and parameters of a function that a pointer points to.
    fn prototype(&mut self, place: Place) -> Result<Function<'t>> {
        let mut function = self.empty(false, Linkage::Internal, place);
        self.open_scope(place)?;
        if self.peek()?.0 == Word::Mark(b'(') {
            function.results = self.formals(&mut function)?;
        }
        (function.name, _) = self.name()?;
        if self.peek()?.0 == Word::Mark(b'(') {
            function.parameters = self.formals(&mut function)?;
        }
        self.scopes.pop();
        // Directives for the compiler.
        while !matches!(self.next()?.0, Word::Mark(b';') | Word::End) {}
        Ok(function)
    }

    /// `.loc 1 12 3`, with or without the place of a call that was inlined: `, function_name name, inlined_at 1 21 9`. If that call is in an
    /// inlined function itself, an earlier `.loc` of the body states the place of the call with the next one.
    fn location(&mut self) -> Result<()> {
        let place = self.source_place()?;
        let mut call = None;
        while self.take(b',')? {
            match self.name()?.0 {
                "inlined_at" => call = self.source_place()?,
                // `function_name` and a label, with a distance.
                _ => {
                    self.name()?;
                    if self.take(b'+')? {
                        self.integer()?;
                    }
                }
            }
        }
        let call = call.map(|call| match self.source_places.get(&call) {
            Some(number) => *number,
            None => self.add_source_place(call, None),
        });
        self.source_place = place.map(|place| self.add_source_place(place, call));
        Ok(())
    }

    /// The numbers of a file, of a line and of a column.
    fn source_place(&mut self) -> Result<Option<SourcePlace>> {
        let [file, line, column] = [self.integer()?, self.integer()?, self.integer()?].map(u32::try_from);
        let (Ok(file), Ok(line), Ok(column)) = (file, line, column) else { return Ok(None) };
        Ok(Some(SourcePlace { file: (self.unit, file), line, column }))
    }

    fn add_source_place(&mut self, place: SourcePlace, call: Option<u32>) -> u32 {
        let all = Arc::make_mut(&mut self.source.source_places);
        let last = self.source_places.get(&place);
        if let Some(last) = last.filter(|last| all.get(**last as usize) == Some(&(place, call))) {
            return *last;
        }
        let number = all.len() as u32;
        all.push((place, call));
        self.source_places.insert(place, number);
        number
    }

    fn registers(&mut self, function: &mut Function<'t>) -> Result<()> {
        let VariableType { element: of, vector, .. } = self.variable_type()?;
        let len = vector as u32;
        loop {
            let (name, place) = self.name()?;
            if self.take(b'<')? {
                let count = self.integer()?;
                let count = u64::try_from(count)
                    .map_err(|_| PtxError::syntax(place, format!("{count} is no number of registers")))?;
                self.expect(b'>')?;
                let is_known = self.scopes.last_mut().is_some_and(|scope| {
                    let least = scope.numbered.get(name).copied();
                    scope.ranges.insert(name, (count, of, len)).is_some()
                        || least.is_some_and(|least| least < count)
                });
                if is_known {
                    return Err(declared_twice(name, place));
                }
            } else {
                let named = add_registers(function, of, len);
                self.declare(name, named, place)?;
            }
            if !self.take(b',')? {
                break;
            }
        }
        self.expect(b';')
    }

    /// The register or variable of this name, which may be that of an element of a vector: `v.x`.
    fn resolve(&mut self, function: &mut Function<'t>, name: &'t str) -> Option<Named> {
        let found = self.resolve_whole(function, name);
        let Some((vector, element)) = name.split_once('.').filter(|_| found.is_none()) else { return found };
        let index = "xyzw".find(element).or_else(|| "rgba".find(element)).filter(|_| element.len() == 1)?;
        match self.resolve_whole(function, vector)? {
            Named::Vector(first, len) if (index as u32) < len => Some(Named::Register(first + index as u32)),
            _ => None,
        }
    }

    fn resolve_whole(&mut self, function: &mut Function<'t>, name: &'t str) -> Option<Named> {
        for scope in self.scopes.iter_mut().rev() {
            if let Some(named) = scope.names.get(name) {
                return Some(*named);
            }
            if scope.ranges.is_empty() {
                continue;
            }
            for (prefix, number) in numbers(name) {
                let Some(&(count, of, len)) = scope.ranges.get(prefix) else { continue };
                if number < count {
                    let named = add_registers(function, of, len);
                    scope.names.insert(name, named);
                    return Some(named);
                }
            }
        }
        None
    }

    fn instruction(
        &mut self,
        function: &mut Function<'t>,
        opcode: &'t str,
        guard: Option<(u32, bool)>,
        place: Place,
    ) -> Result<Instruction<'t>> {
        let mut operands = Vec::new();
        if !self.take(b';')? {
            let is_call = opcode == "call" || opcode.starts_with("call.");
            loop {
                let operand = match is_call && self.take(b'(')? {
                    true => Operand::List(self.simple_operands(b')')?),
                    false => self.operand()?,
                };
                operands.push(self.resolved(function, operand));
                if self.take(b'|')? {
                    let second = self.operand()?;
                    let second = self.resolved(function, second);
                    let first = operands.pop();
                    let registers = (first.as_ref().map(register_of), register_of(&second));
                    let (Some(Ok(first)), Ok(second)) = registers else {
                        return Err(PtxError::syntax(place, "a target is no register"));
                    };
                    operands.push(Operand::Pair(first, second));
                }
                if !self.take(b',')? {
                    break;
                }
            }
            self.expect(b';')?;
        }
        Ok(Instruction {
            opcode,
            guard,
            operands,
            place,
            scope: self.scope(),
            source_place: self.source_place,
        })
    }

    /// An operand whose names are not resolved.
    fn operand(&mut self) -> Result<Operand<'t>> {
        let (word, place) = self.peek()?;
        match word {
            Word::Integer(_) | Word::Single(_) | Word::Double(_) | Word::Name("WARP_SZ") => {
                return self.constant();
            }
            Word::Mark(b'-' | b'+' | b'~' | b'(') => return self.constant(),
            _ => {}
        }
        self.next()?;
        Ok(match word {
            Word::Name("_") => Operand::Sink,
            Word::Name(name) if self.peek()?.0 == Word::Mark(b'[') => self.element(name)?,
            Word::Name(name) => Operand::Symbol(name, self.distance()?),
            Word::Mark(b'!') => match self.peek()?.0 {
                Word::Name(name) if name != "WARP_SZ" => {
                    self.next()?;
                    Operand::List(vec![Operand::Symbol(name, 0), Operand::Sink])
                }
                _ => {
                    let value = self.unary(0)?.unary(b'!', place)?;
                    self.constant_from(value)?
                }
            },
            Word::Mark(b'{') => Operand::Vector(self.simple_operands(b'}')?),
            Word::Mark(b'[') => {
                let base = self.simple_operand()?;
                let (base, distance) = match base {
                    Operand::Symbol(name, distance) => (Operand::Symbol(name, 0), distance),
                    other => (other, self.distance()?),
                };
                if self.take(b',')? {
                    // The coordinates of a texture, which no instruction here takes.
                    while !self.take(b']')? {
                        self.next()?;
                        if self.peek()?.0 == Word::End {
                            return Err(PtxError::syntax(place, "an address without an end"));
                        }
                    }
                    return Ok(Operand::Sink);
                }
                self.expect(b']')?;
                Operand::Address(Box::new(base), distance)
            }
            found => {
                return Err(PtxError::syntax(
                    place,
                    format!("an operand is expected, not {}", name_of(found)),
                ));
            }
        })
    }

    /// `array[2]`, after the name.
    fn element(&mut self, name: &'t str) -> Result<Operand<'t>> {
        self.expect(b'[')?;
        let index = self.simple_operand()?;
        self.expect(b']')?;
        Ok(match index {
            Operand::Integer(index) => Operand::Element(name, Some(index)),
            _ => Operand::Element(name, None),
        })
    }

    /// A constant expression.
    fn constant(&mut self) -> Result<Operand<'t>> {
        let value = self.unary(0)?;
        self.constant_from(value)
    }

    /// A constant expression, after its first number.
    fn constant_from(&mut self, first: ConstantValue) -> Result<Operand<'t>> {
        let value = self.binary(first, 0, 0)?;
        Ok(match self.chosen(value, 0)? {
            ConstantValue::Integer(bits) => Operand::Integer(bits),
            ConstantValue::Single(bits) => Operand::Single(bits),
            ConstantValue::Double(value) => Operand::Double(value.to_bits()),
        })
    }

    /// `? 1 : 2` behind a condition, or nothing.
    fn chosen(&mut self, condition: ConstantValue, depth: usize) -> Result<ConstantValue> {
        if !self.take(b'?')? {
            return Ok(condition);
        }
        let first = self.expression(depth + 1)?;
        self.expect(b':')?;
        let second = self.expression(depth + 1)?;
        Ok(if condition.is_true() { first } else { second })
    }

    fn expression(&mut self, depth: usize) -> Result<ConstantValue> {
        let first = self.unary(depth)?;
        let value = self.binary(first, 0, depth)?;
        self.chosen(value, depth)
    }

    /// Operators that bind at least as tightly as those of a level, behind their first operand.
    fn binary(&mut self, first: ConstantValue, level: usize, depth: usize) -> Result<ConstantValue> {
        let Some(operators) = OPERATORS.get(level) else { return Ok(first) };
        let mut value = self.binary(first, level + 1, depth)?;
        while let Some(operator) = self.operator(operators)? {
            let (_, place) = self.peek()?;
            let second = self.unary(depth)?;
            let second = self.binary(second, level + 1, depth)?;
            value = value.binary(operator, second, place)?;
        }
        Ok(value)
    }

    /// The next operator, if it is one of these.
    fn operator(&mut self, operators: &[&'static str]) -> Result<Option<&'static str>> {
        let mut ahead = self.words.clone();
        let mark = |word| match word {
            Word::Mark(mark) => Some(mark),
            Word::Name("%") => Some(b'%'),
            _ => None,
        };
        let Some(first) = mark(ahead.next()?.0) else { return Ok(None) };
        let behind = ahead.clone();
        let second = ahead.next().ok().and_then(|(word, _)| mark(word));
        let is_two =
            |operator: &&&str| operator.as_bytes() == [Some(first), second].map(|mark| mark.unwrap_or(0));
        if let Some(found) = operators.iter().find(is_two) {
            self.words = ahead;
            return Ok(Some(found));
        }
        // Of `||` and `<<`, one half is no operator.
        let is_doubled = second == Some(first) && matches!(first, b'|' | b'&' | b'<' | b'>');
        let found = operators.iter().find(|operator| operator.as_bytes() == [first] && !is_doubled);
        if found.is_some() {
            self.words = behind;
        }
        Ok(found.copied())
    }

    /// A number, or an expression in parentheses, with the operators before it.
    fn unary(&mut self, depth: usize) -> Result<ConstantValue> {
        let (word, place) = self.next()?;
        if depth > EXPRESSION_DEPTH_MAX {
            return Err(PtxError::syntax(place, "an expression is nested too deeply"));
        }
        Ok(match word {
            Word::Integer(value) => ConstantValue::Integer(value),
            Word::Single(bits) => ConstantValue::Single(bits),
            Word::Double(bits) => ConstantValue::Double(f64::from_bits(bits)),
            Word::Name("WARP_SZ") => ConstantValue::Integer(32),
            Word::Mark(mark @ (b'-' | b'+' | b'~' | b'!')) => self.unary(depth + 1)?.unary(mark, place)?,
            Word::Mark(b'(') => match self.peek()?.0 {
                // Integers have 64 bits already.
                Word::Name(".s64" | ".u64") => {
                    self.next()?;
                    self.expect(b')')?;
                    self.unary(depth + 1)?
                }
                _ => {
                    let value = self.expression(depth + 1)?;
                    self.expect(b')')?;
                    value
                }
            },
            found => {
                return Err(PtxError::syntax(place, format!("a number is expected, not {}", name_of(found))));
            }
        })
    }

    /// `+ 4`, `+ -4`, `+ 4*8` or nothing. `- 4` is no form of PTX.
    fn distance(&mut self) -> Result<i64> {
        let (word, place) = self.peek()?;
        if word != Word::Mark(b'+') {
            return Ok(0);
        }
        self.next()?;
        match self.expression(0)? {
            ConstantValue::Integer(distance) => Ok(distance as i64),
            _ => Err(PtxError::syntax(place, "a distance has a fraction")),
        }
    }

    fn simple_operands(&mut self, end: u8) -> Result<Vec<Operand<'t>>> {
        let mut operands = Vec::new();
        while !self.take(end)? {
            operands.push(self.simple_operand()?);
            if !self.take(b',')? {
                self.expect(end)?;
                break;
            }
        }
        Ok(operands)
    }

    /// An operand without parts.
    fn simple_operand(&mut self) -> Result<Operand<'t>> {
        match self.peek()? {
            (Word::Mark(mark @ (b'{' | b'[' | b'!')), place) => {
                Err(PtxError::unsupported(place, format!("`{}` inside of an operand", char::from(mark))))
            }
            _ => self.operand(),
        }
    }

    fn resolved(&mut self, function: &mut Function<'t>, operand: Operand<'t>) -> Operand<'t> {
        match operand {
            Operand::Symbol(name, distance) => match self.resolve(function, name) {
                Some(Named::Register(number)) if distance != 0 => Operand::Sum(number, distance),
                // It has no value, and is refused when it is used.
                Some(Named::Vector(..)) if distance != 0 => Operand::Symbol(name, distance),
                Some(Named::Register(number)) => Operand::Register(number),
                Some(Named::Vector(first, len)) => {
                    Operand::Vector((first..first + len).map(Operand::Register).collect())
                }
                Some(Named::Variable(number)) => Operand::Variable(number, distance),
                None if name.starts_with('%') && distance == 0 => Operand::Special(name),
                None => Operand::Symbol(name, distance),
            },
            Operand::Element(name, index) => match self.resolve(function, name) {
                Some(Named::Variable(number)) => match function.variables[number as usize].at(index) {
                    Some(distance) => Operand::Address(Box::new(Operand::Variable(number, 0)), distance),
                    None => Operand::Element(name, None),
                },
                _ => Operand::Element(name, index),
            },
            // A negated predicate, as `operand` leaves it.
            Operand::List(mut parts) if parts.len() == 2 && parts[1] == Operand::Sink => {
                let first = parts.swap_remove(0);
                match self.resolved(function, first) {
                    Operand::Register(number) => Operand::Not(number),
                    other => other,
                }
            }
            Operand::Vector(parts) => {
                Operand::Vector(parts.into_iter().map(|part| self.resolved(function, part)).collect())
            }
            Operand::List(parts) => {
                Operand::List(parts.into_iter().map(|part| self.resolved(function, part)).collect())
            }
            Operand::Address(base, distance) => {
                Operand::Address(Box::new(self.resolved(function, *base)), distance)
            }
            other => other,
        }
    }
}

/// The ways to read a name as that of a register of a range: the prefix of a range may end with digits too.
fn numbers(name: &str) -> impl Iterator<Item = (&str, u64)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count().min(NUMBER_DIGITS_MAX);
    let parts = (1..=digits).map(|digits| name.split_at(name.len() - digits));
    parts.filter_map(|(prefix, number)| Some((prefix, number.parse().ok()?)))
}

/// A new register, or those of a new vector.
fn add_registers(function: &mut Function<'_>, of: Type, len: u32) -> Named {
    let first = function.registers.len() as u32;
    function.registers.extend((0..len).map(|_| of));
    if len == 1 { Named::Register(first) } else { Named::Vector(first, len) }
}

fn declared_twice(name: &str, place: Place) -> PtxError {
    PtxError::syntax(place, format!("`{}` is declared twice", short(name)))
}

/// The register of a target, or `None` for `_`.
fn register_of(operand: &Operand<'_>) -> core::result::Result<Option<u32>, ()> {
    match operand {
        Operand::Register(number) => Ok(Some(*number)),
        Operand::Sink => Ok(None),
        _ => Err(()),
    }
}

/// A `f32` as an immediate of this type.
pub(crate) fn single_as(of: Type, bits: u32) -> u64 {
    match of {
        Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
        _ => u64::from(bits),
    }
}

/// A `f64` as an immediate of this type.
pub(crate) fn double_as(of: Type, bits: u64) -> u64 {
    match of {
        Type::F32 => u64::from((f64::from_bits(bits) as f32).to_bits()),
        _ => bits,
    }
}

fn target_of(word: &str) -> Option<Target> {
    let digits = word.strip_prefix("sm_").or_else(|| word.strip_prefix("compute_"))?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    Some(Target { capability: digits[..end].parse().ok()?, is_specific: end < digits.len() })
}

fn name_of(word: Word<'_>) -> String {
    match word {
        Word::Name(name) => format!("`{}`", short(name)),
        Word::Integer(value) => format!("`{value}`"),
        Word::Single(_) | Word::Double(_) => "a number".into(),
        Word::Text(text) => format!("\"{}\"", short(text)),
        Word::Mark(mark) => format!("`{}`", char::from(mark)),
        Word::End => "the end".into(),
    }
}

/// What a texture, a surface and a sampler are.
const TEXTURE: &str = "a texture, a surface or a sampler";
/// The largest parameter of a kernel or function.
const PARAMETER_BYTES_MAX: u64 = 32_764;
const TARGET_OPTIONS: [&str; 4] = ["texmode_independent", "texmode_unified", "debug", "map_f64_to_f32"];
/// What stands behind the parameters of a function, and behind those of a kernel.
const DIRECTIVES: [&[&str]; 2] = [
    &[".noreturn", ".abi_preserve", ".abi_preserve_control"],
    &[
        ".maxntid",
        ".reqntid",
        ".maxnreg",
        ".minnctapersm",
        ".maxnctapersm",
        ".reqnctapercluster",
        ".explicitcluster",
        ".maxclusterrank",
    ],
];
/// The constant memory of a text.
const CONSTANT_BYTES_MAX: u64 = 64 << 10;
/// The braces of initial contents in each other, at most.
const BRACES_MAX: usize = 8;
/// The parentheses and operators before a number, at most.
const EXPRESSION_DEPTH_MAX: usize = 50;
/// The scopes in each other, at most.
const SCOPES_MAX: usize = 100;
/// The digits of a register's number, at most.
const NUMBER_DIGITS_MAX: usize = 10;
