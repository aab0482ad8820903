//! [`Context`]: the state that the parts of one value share while the value is moved. [`Plan`]: the small arrays that are uploaded
//! together.

use core::any::{Any, TypeId};
use gpumem_array::ndarray::{ArrayView, Dimension};
use gpumem_array::{ArrayError, Element, Gpu, GpuArray, Pack, PackedArray};
use std::collections::{HashMap, HashSet, VecDeque};

/// One call of [`Adapt::adapt`](crate::Adapt::adapt) or [`Adapt::into_adapted`](crate::Adapt::into_adapted): the target, and what
/// several parts of the value share.
pub struct Context<'t, To> {
    to: &'t To,
    /// The moved form of each shared part, by address and new type.
    shared: HashMap<(usize, TypeId), Box<dyn Any>>,
    uploaded: Option<UploadedArrays>,
    /// The `Gpu` that new arrays belong to, if it is not the target's.
    owner: Option<Gpu>,
}

/// The small arrays of a value that are uploaded together, before the value is rebuilt; see [`Adapt::plan`](crate::Adapt::plan).
pub struct Plan<'a> {
    gpu: Gpu,
    pack: Pack<'a>,
    arrays: Vec<Planned>,
    columns: Columns,
    /// Arrays that wait until there are enough for a pack.
    first: Vec<(ArrayKey, Add<'a>)>,
    /// Addresses of shared parts.
    seen: HashSet<usize>,
    size_bytes_max: usize,
    is_failed: bool,
}

/// Adds an array to a pack and its [`PackedArray`] to the columns, and returns its place there.
type Add<'a> = Box<dyn FnOnce(&mut Pack<'a>, &Gpu, &mut Columns) -> Result<usize, ArrayError> + 'a>;

/// Values of several types, in a list for each type. A value has arrays of few types, so a search is faster than a hash.
#[derive(Default)]
struct Columns(Vec<Box<dyn Any>>);

impl Columns {
    /// Adds a value, and returns its place in the list of its type.
    fn push<A: 'static>(&mut self, value: A) -> usize {
        if let Some(column) = self.column() {
            push(column, Some(value));
            return column.len() - 1;
        }
        self.0.push(Box::new(vec![Some(value)]));
        0
    }

    fn take<A: 'static>(&mut self, place: usize) -> Option<A> {
        self.column()?.get_mut(place)?.take()
    }

    fn column<A: 'static>(&mut self) -> Option<&mut Vec<Option<A>>> {
        self.0.iter_mut().find_map(|column| column.downcast_mut())
    }
}

/// Adds to a list that becomes long. Unwritten pages are free, but moving a list costs all its pages again.
fn push<A>(list: &mut Vec<A>, value: A) {
    if list.len() == list.capacity() {
        list.reserve(7 * list.len());
    }
    list.push(value);
}

/// Contiguous elements of the value. While the value is borrowed, the address is unique.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ArrayKey {
    address: usize,
    size_bytes: usize,
    is_row_major: bool,
    types: TypeId,
}

impl ArrayKey {
    /// `None` if the array is empty or has gaps. `U` is the new type of the elements.
    fn of<T: Element, U: Element, D: Dimension + 'static>(array: &ArrayView<'_, T, D>) -> Option<Self> {
        let is_row_major = array.is_standard_layout();
        let is_contiguous = is_row_major || array.t().is_standard_layout();
        (is_contiguous && !array.is_empty()).then(|| Self {
            address: array.as_ptr().addr(),
            size_bytes: array.len() * size_of::<T>(),
            is_row_major,
            types: TypeId::of::<(T, U, D)>(),
        })
    }
}

/// An array of a pack: its elements in the value, and the place of its [`PackedArray`].
struct Planned {
    key: ArrayKey,
    place: usize,
}

/// The arrays of a plan, uploaded. They are usually taken in the order of the plan.
struct UploadedArrays {
    arrays: Vec<Planned>,
    columns: Columns,
    next: usize,
    /// By key, once the order has differed: the indices of arrays that have not been taken.
    by_key: Option<HashMap<ArrayKey, VecDeque<usize>>>,
}

impl<'t, To> Context<'t, To> {
    pub(crate) fn new(to: &'t To) -> Self {
        Self { to, shared: HashMap::new(), uploaded: None, owner: None }
    }

    /// The target.
    #[must_use]
    pub fn to(&self) -> &'t To {
        self.to
    }

    /// Assigns new arrays to a `Gpu` with a different stream than the target's.
    pub(crate) fn set_owner(&mut self, gpu: &Gpu) {
        self.owner = Some(gpu.clone());
    }

    pub(crate) fn owner(&self) -> Option<&Gpu> {
        self.owner.as_ref()
    }

    /// Uploads the arrays of a plan. If that fails, all arrays are uploaded one by one: an error then names the array.
    pub(crate) fn upload(&mut self, plan: Plan<'_>) {
        let Plan { pack, arrays, columns, is_failed, .. } = plan;
        if !arrays.is_empty() && !is_failed && pack.upload().is_ok() {
            self.uploaded = Some(UploadedArrays { arrays, columns, next: 0, by_key: None });
        }
    }

    /// Returns the array of these elements, if already uploaded.
    pub(crate) fn uploaded<T: Element, U: Element, D: Dimension + 'static>(
        &mut self,
        array: &ArrayView<'_, T, D>,
    ) -> Option<GpuArray<U, D>> {
        let uploaded = self.uploaded.as_mut()?;
        let found = uploaded.take::<PackedArray<U, D>>(ArrayKey::of::<T, U, D>(array)?)?;
        let found = found.into_array().ok()?;
        (found.raw_dim() == array.raw_dim()).then_some(found)
    }

    /// Returns the moved form of the shared part at `address`, if already moved.
    pub(crate) fn shared<R: Clone + 'static>(&self, address: usize) -> Option<R> {
        let entry = self.shared.get(&(address, TypeId::of::<R>()))?;
        entry.downcast_ref::<MovedEntry<R>>().map(|entry| entry.moved.clone())
    }

    /// Records the moved form of the shared part at `address`. While the context exists, `source` keeps the address from being reused.
    pub(crate) fn share<R: Clone + 'static>(&mut self, address: usize, moved: &R, source: impl Any) {
        let entry = MovedEntry { moved: moved.clone(), _source: Box::new(source) };
        self.shared.insert((address, TypeId::of::<R>()), Box::new(entry));
    }
}

impl UploadedArrays {
    fn take<A: 'static>(&mut self, key: ArrayKey) -> Option<A> {
        let index = self.index(key)?;
        self.columns.take(self.arrays.get(index)?.place)
    }

    fn index(&mut self, key: ArrayKey) -> Option<usize> {
        if let Some(by_key) = &mut self.by_key {
            return by_key.get_mut(&key)?.pop_front();
        }
        if self.arrays.get(self.next).is_some_and(|next| next.key == key) {
            self.next += 1;
            return Some(self.next - 1);
        }
        // An array without a plan, or one out of order.
        let mut by_key: HashMap<ArrayKey, VecDeque<usize>> = HashMap::new();
        for (index, array) in self.arrays.iter().enumerate().skip(self.next) {
            by_key.entry(array.key).or_default().push_back(index);
        }
        let index = by_key.get_mut(&key).and_then(VecDeque::pop_front);
        self.by_key = Some(by_key);
        index
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(gpu: &Gpu, size_bytes_max: usize) -> Self {
        Self {
            gpu: gpu.clone(),
            pack: gpu.pack(),
            arrays: Vec::new(),
            columns: Columns::default(),
            first: Vec::new(),
            seen: HashSet::new(),
            size_bytes_max,
            is_failed: false,
        }
    }

    /// True if this is the first visit of the shared part at `address`.
    pub(crate) fn is_first(&mut self, address: usize) -> bool {
        self.seen.insert(address)
    }

    /// Adds an array that keeps its type, if it is small.
    pub(crate) fn add<T: Element, U: Element, D: Dimension + 'static>(
        &mut self,
        array: &ArrayView<'a, T, D>,
        unchanged: ArrayView<'a, U, D>,
    ) {
        self.add_with::<T, U, D>(array, |pack, gpu| pack.add(gpu, unchanged));
    }

    /// Adds an array whose elements are converted, if it is small.
    pub(crate) fn add_converted<T: Element, U: Element, D: Dimension + 'static>(
        &mut self,
        array: &ArrayView<'a, T, D>,
        convert: fn(T) -> U,
    ) {
        let view = array.clone();
        self.add_with::<T, U, D>(array, move |pack, gpu| pack.add_owned(gpu, view.mapv(convert)));
    }

    fn add_with<T: Element, U: Element, D: Dimension + 'static>(
        &mut self,
        array: &ArrayView<'a, T, D>,
        add: impl FnOnce(&mut Pack<'a>, &Gpu) -> Result<PackedArray<U, D>, ArrayError> + 'a,
    ) {
        // A view that repeats its elements can have more elements than fit in memory.
        let is_small = array.len().saturating_mul(size_of::<U>()) <= self.size_bytes_max;
        let Some(key) = ArrayKey::of::<T, U, D>(array).filter(|_| is_small && !self.is_failed) else {
            return;
        };
        let add = |pack: &mut Pack<'a>, gpu: &Gpu, columns: &mut Columns| Ok(columns.push(add(pack, gpu)?));
        if !self.arrays.is_empty() {
            return self.push(key, add);
        }
        self.first.push((key, Box::new(add)));
        if self.first.len() >= PACKED_MIN {
            for (key, add) in core::mem::take(&mut self.first) {
                self.push(key, add);
            }
        }
    }

    fn push(
        &mut self,
        key: ArrayKey,
        add: impl FnOnce(&mut Pack<'a>, &Gpu, &mut Columns) -> Result<usize, ArrayError>,
    ) {
        match add(&mut self.pack, &self.gpu, &mut self.columns) {
            Ok(place) => push(&mut self.arrays, Planned { key, place }),
            Err(_) => self.is_failed = true,
        }
    }
}

/// Below this number arrays are uploaded one by one, which pins no memory.
const PACKED_MIN: usize = 16;

/// A shared part after the move, and its original owner.
struct MovedEntry<R> {
    moved: R,
    _source: Box<dyn Any>,
}
