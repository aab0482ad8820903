//! Instructions that [`each form`](crate::texts) leaves out: memory, branches, barriers, lanes, and results that the manual of PTX leaves open for
//! most operands. Each runs in a block of 128 threads, and one thread's result is known.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_sim::{Sim, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::sys::DriverError;
use std::ffi::CString;
use std::ptr::null_mut;

const THREADS: usize = 128;
/// Bytes that a thread has in the input and in the output.
const BYTES: usize = 128;
/// The thread whose result is known: lane 5 of the third warp.
const THREAD: usize = 69;

/// The words that each thread has in the input.
const INPUT: [u32; 4] = [0x8182_8384, 0x1112_1314, 0x3FC0_0000, 0x4000_0000];

/// A line is a kernel: statements, a register, and what it has at the end.
pub(crate) const OTHERS: &str = "
ld.param.u64 %y0, [in]; ld.global.u32 %r0, [%y0] -> %r0 0x81828384
ld.global.b8 %r0, [%in] -> %r0 0x84
ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f0, %f1, %f2, %f3}, [%in]; mov.f32 %f0, %f2 -> %f0 0x3fc00000
mov.u32 %r0, 9; st.volatile.shared.u32 [%s], %r0; ld.volatile.shared.u32 %r0, [%s] -> %r0 9
ld.relaxed.gpu.global.u32 %r0, [%in] -> %r0 0x81828384
ld.acquire.sys.global.u64 %y0, [%in] -> %y0 0x1112131481828384
st.local.b16 [mine], %h1; st.local.b32 [mine+4], %r1; ld.local.v2.b32 {%r2, %r0}, [mine] -> %r0 7
st.local.b16 [mine+2], %h1; ld.local.u16 %r0, [mine+2] -> %r0 0x3c00
ld.const.s16 %h0, [steady+2] -> %h0 0xfffd
mov.u64 %y0, steady; cvta.const.u64 %y0, %y0; ld.s16 %h0, [%y0+2] -> %h0 0xfffd
ld.u64 %y0, [%in+8] -> %y0 0x400000003fc00000
ldu.global.u32 %r0, [%in+4] -> %r0 0x11121314
st.global.v2.f64 [%out], {%d1, %d2}; ld.global.f64 %d0, [%out+8] -> %d0 0x4000000000000000
st.shared.u8 [%s], %r1; ld.shared.u32 %r0, [%s] -> %r0 0x0a0b0c07
st.release.gpu.global.u32 [%out], %r1; ld.acquire.gpu.global.u32 %r0, [%out] -> %r0 7
st.relaxed.cta.shared.u32 [%s], %r1; ld.relaxed.cta.shared.u32 %r0, [%s] -> %r0 7
st.volatile.u32 [%out], %r1; ld.volatile.u32 %r0, [%out] -> %r0 7
red.global.add.u32 [%out], %r1; red.global.add.u32 [%out], %r1; ld.global.u32 %r0, [%out] -> %r0 14
red.shared.max.s32 [%s+4], %r2; ld.shared.u32 %r0, [%s+4] -> %r0 0x01020304
red.relaxed.gpu.global.add.f32 [%out], %f1; ld.global.f32 %f0, [%out] -> %f0 0x3fc00000
mov.b32 %r0, {%h1, %h2}; red.global.add.noftz.f16x2 [%out], %r0; red.global.add.noftz.f16x2 [%out], %r0; ld.global.u32 %r0, [%out] -> %r0 0x44004000
red.global.add.v4.f32 [%out], {%f1, %f2, %f3, %f1}; ld.global.f32 %f0, [%out+8] -> %f0 0xc0800000
mov.u32 %r1, 0x0a0b0c0d; atom.acq_rel.cta.shared.cas.b32 %r0, [%s], %r1, %r2; ld.shared.u32 %r1, [%s]; xor.b32 %r0, %r0, %r1 -> %r0 0xf5f4f3f0
atom.global.cas.b16 %h0, [%out+2], %h0, %h1; ld.global.u32 %r0, [%out] -> %r0 0x3c000000
atom.global.add.noftz.f16 %h0, [%out+2], %h1; atom.global.add.noftz.f16 %h0, [%out+2], %h2 -> %h0 0x3c00
mov.b16 %h1, 0x3fc0; atom.global.add.noftz.bf16 %h0, [%out], %h1; atom.global.add.noftz.bf16 %h0, [%out], %h1; ld.global.u16 %h0, [%out] -> %h0 0x4040
cvta.global.u64 %y0, %in; cvta.to.global.u64 %y0, %y0; ld.global.u32 %r0, [%y0] -> %r0 0x81828384
cvt.u64.u32 %y0, %s; cvta.shared.u64 %y0, %y0; ld.u32 %r0, [%y0] -> %r0 0x0a0b0c0d
cvt.u64.u32 %y0, %s; cvta.shared.u64 %y0, %y0; isspacep.shared %p0, %y0 -> %p0 1
isspacep.global %p0, %in -> %p0 1
st.local.u32 [mine], %r1; mov.u64 %y0, mine; cvta.local.u64 %y0, %y0; ld.u32 %r0, [%y0] -> %r0 7
mov.b64 %y0, number; cvta.param.u64 %y0, %y0; ld.u32 %r0, [%y0] -> %r0 12345
cp.async.ca.shared.global [%s], [%in], 8; cp.async.wait_all; ld.shared.u32 %r0, [%s+4] -> %r0 0x11121314
mov.u32 %r0, 8; cp.async.cg.shared.global.L2::128B [%s], [%in], 16, %r0; cp.async.commit_group; cp.async.wait_group 0; ld.shared.v4.u32 {%r1, %r0, %r2, %r3}, [%s]; or.b32 %r0, %r0, %r2 -> %r0 0x11121314
mbarrier.init.shared.b64 [%s], 1; cp.async.ca.shared.global [%s+8], [%in], 8; cp.async.mbarrier.arrive.noinc.shared.b64 [%s]; cp.async.wait_all; mbarrier.test_wait.parity.shared.b64 %p0, [%s], 1; ld.shared.u32 %r0, [%s+12] -> %r0 0x11121314
mbarrier.init.shared.b64 [%s], 3; mbarrier.arrive.shared.b64 %y0, [%s]; mbarrier.pending_count.b64 %r0, %y0 -> %r0 3
mbarrier.init.shared.b64 [%s], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%s], 16; mbarrier.arrive.shared.b64 %y0, [%s]; mbarrier.test_wait.shared.b64 %p0, [%s], %y0 -> %p0 0
prefetch.global.L1 [%in]; prefetchu.L1 [%in]; ld.global.u32 %r0, [%in] -> %r0 0x81828384
applypriority.global.L2::evict_normal [%in], 128; ld.global.u32 %r0, [%in] -> %r0 0x81828384
discard.global.L2 [%out], 128; st.global.u32 [%out], %r1; ld.global.u32 %r0, [%out] -> %r0 7
createpolicy.fractional.L2::evict_last.b64 %y0, 1.0; mov.u32 %r0, %r1 -> %r0 7
st.global.u32 [%out], %r1; membar.gl; fence.acq_rel.gpu; fence.proxy.async; ld.global.u32 %r0, [%out] -> %r0 7
sub.cc.u32 %r0, %r1, %r1; addc.u32 %r0, 0, 0 -> %r0 1
sub.cc.u32 %r0, %r1, %r2; addc.u32 %r0, 0, 0 -> %r0 0
add.cc.u32 %r0, %r1, %r1; subc.u32 %r0, 0, 0 -> %r0 0xffffffff
add.cc.u32 %r0, %r2, %r2; subc.u32 %r0, 0, 0 -> %r0 0
sub.cc.u32 %r0, %r1, %r2; subc.cc.u32 %r0, %r1, %r1; addc.u32 %r0, 0, 0 -> %r0 0
sub.cc.u32 %r0, %r2, %r1; subc.cc.u32 %r0, %r1, %r1; addc.u32 %r0, %r1, 0 -> %r0 8
sub.cc.u64 %y0, %y1, %y1; madc.hi.cc.u64 %y0, %y1, 2, 5; addc.u64 %y0, %y0, 0 -> %y0 6
mad.lo.cc.u32 %r0, %r2, %r2, %r2; subc.u32 %r0, %r1, 0 -> %r0 7
griddepcontrol.wait; nanosleep.u32 20; pmevent 1; mov.u32 %r0, %r1 -> %r0 7
st.shared.u32 [%s], %me; bar.sync 0; ld.shared.u32 %r0, [%s5] -> %r0 5
st.shared.u32 [%s], %me; barrier.sync.aligned 0; ld.shared.u32 %r0, [%s5] -> %r0 5
setp.ge.u32 %p0, %me, 64; st.shared.u32 [%s], %me; @!%p0 bar.arrive 1, 128; @%p0 bar.sync 1, 128; @%p0 ld.shared.u32 %r0, [%s5] -> %r0 5
setp.lt.u32 %p0, %me, 64; st.shared.u32 [%s], %me; @%p0 bra END; barrier.sync 2, 64; ld.shared.u32 %r0, [%s5+1888]; END: mov.u32 %r0, %r0 -> %r0 64
mov.u32 %r0, 64; setp.ge.u32 %p0, %me, 64; st.shared.u32 [%s], %me; @%p0 barrier.sync %r1, %r0; @%p0 ld.shared.u32 %r0, [%s5+3040] -> %r0 100
setp.ge.u32 %p0, %me, 64; @%p0 bra TAKE; st.shared.u32 [%s], %me; barrier.arrive 1, 128; barrier.sync 2, 128; st.shared.u32 [%s+4], %me; barrier.arrive 1, 128; bra END; TAKE: barrier.sync 1, 128; ld.shared.u32 %r0, [%s5]; barrier.arrive 2, 128; barrier.sync 1, 128; ld.shared.u32 %r1, [%s5+4]; add.u32 %r0, %r0, %r1; END: mov.u32 %r0, %r0 -> %r0 10
mov.u32 %r2, 0; setp.lt.u32 %p0, %me, 64; AGAIN: @%p0 barrier.sync 3, 64; @!%p0 barrier.sync 4, 64; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 5; @%p1 bra AGAIN; st.shared.u32 [%s], %r2; barrier.sync 0; ld.shared.u32 %r0, [%s5] -> %r0 5
setp.lt.u32 %p0, %me, 3; bar.red.popc.u32 %r0, 1, %p0 -> %r0 3
setp.lt.u32 %p0, %me, 127; bar.red.and.pred %p0, 1, %p0 -> %p0 0
st.shared.u32 [%s], %me; bar.warp.sync -1; and.b32 %r1, %me, 96; mad.lo.u32 %r1, %r1, 32, %s5; ld.shared.u32 %r0, [%r1+64] -> %r0 71
and.b32 %r1, %me, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra EVEN; st.shared.u32 [%s], %me; bar.warp.sync -1; ld.shared.u32 %r0, [%s+-32]; bra END; EVEN: st.shared.u32 [%s], %me; bar.warp.sync -1; END: mov.u32 %r0, %r0 -> %r0 68
and.b32 %r1, %me, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra EVEN; vote.sync.ballot.b32 %r0, %p0, -1; bra END; EVEN: vote.sync.ballot.b32 %r0, %p0, -1; END: mov.u32 %r0, %r0 -> %r0 0x55555555
and.b32 %r1, %me, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra EVEN; shfl.sync.bfly.b32 %r0, %me, 1, 31, -1; bra END; EVEN: shfl.sync.bfly.b32 %r0, %me, 1, 31, -1; END: mov.u32 %r0, %r0 -> %r0 68
mov.u32 %r0, 0; st.shared.u32 [%s5], %r0; st.shared.u32 [%s5+4], %r0; bar.sync 0; LOCK: atom.shared.cas.b32 %r1, [%s5], 0, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra LOCK; ld.volatile.shared.u32 %r2, [%s5+4]; add.u32 %r2, %r2, 1; st.volatile.shared.u32 [%s5+4], %r2; membar.cta; atom.shared.exch.b32 %r1, [%s5], 0; bar.sync 0; ld.shared.u32 %r0, [%s5+4] -> %r0 128
shfl.sync.up.b32 %r0, %me, 1, 0, -1 -> %r0 68
shfl.sync.down.b32 %r0|%p0, %me, 2, 31, -1 -> %r0 71
shfl.sync.down.b32 %r0|%p0, %me, 30, 31, -1 -> %p0 0
shfl.sync.bfly.b32 %r0, %me, 4, 31, -1 -> %r0 65
shfl.sync.idx.b32 %r0, %me, 9, 31, -1 -> %r0 73
setp.lt.u32 %p1, %me, 72; vote.sync.all.pred %p0, %p1, -1 -> %p0 0
setp.lt.u32 %p1, %me, 72; vote.sync.any.pred %p0, %p1, -1 -> %p0 1
setp.lt.u32 %p1, %me, 96; vote.sync.uni.pred %p0, %p1, -1 -> %p0 1
setp.lt.u32 %p1, %me, 72; vote.sync.ballot.b32 %r0, %p1, -1 -> %r0 0xff
activemask.b32 %r0 -> %r0 0xffffffff
shr.u32 %r1, %me, 1; match.any.sync.b32 %r0, %r1, -1 -> %r0 0x30
match.all.sync.b64 %r0|%p0, %y1, -1 -> %p0 1
match.all.sync.b32 %r0|%p0, %me, -1 -> %r0 0
redux.sync.add.s32 %r0, %me, -1 -> %r0 2544
redux.sync.min.u32 %r0, %me, -1 -> %r0 64
redux.sync.xor.b32 %r0, %r1, -1 -> %r0 0
elect.sync %r0|%p0, -1 -> %p0 0
mov.b64 {%r1, %r0}, %y1 -> %r0 0x01234567
mov.b32 %r0, {%h1, %h2} -> %r0 0x40003c00
mov.u32 %r0, %tid.x -> %r0 69
mov.u64 %y0, %clock64; mov.u64 %y1, %clock64; setp.ge.u64 %p0, %y1, %y0 -> %p0 1
bra NEXT; mov.u32 %r1, 1; NEXT: mov.u32 %r0, %r1 -> %r0 7
LIST: .branchtargets FIRST, SECOND; mov.u32 %r2, 1; brx.idx %r2, LIST; FIRST: mov.u32 %r1, 1; SECOND: mov.u32 %r0, %r1 -> %r0 7
call.uni after; mov.u32 %r0, %r1 -> %r0 7
st.param.b32 [given], %r1; call (made), after_it, (given); ld.param.b32 %r0, [made] -> %r0 8
mov.u64 %y0, after_it; st.param.b32 [given], %r1; TYPE: .callprototype (.param .b32 _) _ (.param .b32 _); call (made), %y0, (given), TYPE; ld.param.b32 %r0, [made] -> %r0 8
mov.u32 %r0, 3; st.global.u64 [%result], %y1; ret -> %y1 0x0123456789abcdef
st.global.u64 [%result], %y1; exit; mov.u32 %r0, 3 -> %y1 0x0123456789abcdef
div.approx.f32 %f0, %f1, %f2 -> %f0 0x3f400000
div.full.ftz.f32 %f0, %f1, %f2 -> %f0 0x3f400000
rcp.approx.ftz.f32 %f0, %f2 -> %f0 0x3f000000
rcp.approx.ftz.f64 %d0, %d2 -> %d0 0x3fe0000000000000
mov.f64 %d0, 0d8008000000000000; rcp.approx.ftz.f64 %d0, %d0 -> %d0 0xfff0000000000000
mov.f64 %d0, 0d7fee000000000000; rcp.approx.ftz.f64 %d0, %d0 -> %d0 0
mov.f64 %d0, 0d8008000000000000; rsqrt.approx.ftz.f64 %d0, %d0 -> %d0 0xfff0000000000000
abs.f32 %f0, %f3; sqrt.approx.f32 %f0, %f0 -> %f0 0x40000000
abs.f32 %f0, %f3; rsqrt.approx.f32 %f0, %f0 -> %f0 0x3f000000
add.f64 %d0, %d2, %d2; rsqrt.approx.ftz.f64 %d0, %d0 -> %d0 0x3fe0000000000000
sub.f32 %f0, %f1, %f1; sin.approx.f32 %f0, %f0 -> %f0 0
sub.f32 %f0, %f1, %f1; cos.approx.f32 %f0, %f0 -> %f0 0x3f800000
lg2.approx.f32 %f0, %f2 -> %f0 0x3f800000
ex2.approx.f32 %f0, %f2 -> %f0 0x40800000
mov.b32 %r0, {%h1, %h2}; ex2.approx.f16x2 %r0, %r0 -> %r0 0x44004000
mov.b16 %h0, 0x4000; ex2.approx.ftz.bf16 %h0, %h0 -> %h0 0x4080
sub.f32 %f0, %f1, %f1; tanh.approx.f32 %f0, %f0 -> %f0 0
mov.b16 %h0, 0; tanh.approx.f16 %h0, %h0 -> %h0 0
neg.f32 %f0, %f1 -> %f0 0xbfc00000
neg.f64 %d0, %d1 -> %d0 0xbfe0000000000000
mov.b32 %r0, {%h1, %h2}; neg.f16x2 %r0, %r0 -> %r0 0xc000bc00
mov.b32 %r0, {%h1, %h2}; neg.bf16x2 %r0, %r0 -> %r0 0xc000bc00
abs.f32 %f0, %f3 -> %f0 0x40800000
mov.f32 %f0, 0f80012345; abs.ftz.f32 %f0, %f0 -> %f0 0
neg.f64 %d0, %d1; abs.f64 %d0, %d0 -> %d0 0x3fe0000000000000
mov.b16 %h0, 0xbfc0; abs.bf16 %h0, %h0 -> %h0 0x3fc0
mad.rn.f32 %f0, %f1, %f2, %f3 -> %f0 0xbf800000
fns.b32 %r0, %r1, 1, 2 -> %r0 2
min.xorsign.abs.f32 %f0, %f1, %f3 -> %f0 0xbfc00000
max.NaN.xorsign.abs.f32 %f0, %f1, %f3 -> %f0 0xc0800000
mov.b32 %r0, {%h1, %h2}; add.ftz.f16x2 %r0, %r0, %r0 -> %r0 0x44004000
fma.rn.ftz.f16 %h0, %h1, %h2, %h3 -> %h0 0x4500
cvt.rn.bf16.f16 %h0, %h3 -> %h0 0x4040
mov.b16 %h0, 0x3c01; cvt.rp.bf16.f16 %h0, %h0 -> %h0 0x3f81
mov.b16 %h0, 0x477f; cvt.rn.f16.bf16 %h0, %h0 -> %h0 0x7bf8
mov.b16 %h0, 0x4040; cvt.rz.f64.bf16 %d0, %h0 -> %d0 0x4008000000000000
mov.f32 %f0, 0f4B000000; cvt.rn.satfinite.f16.f32 %h0, %f0 -> %h0 0x7bff
mov.f32 %f0, 0fFF800000; cvt.rz.satfinite.bf16.f32 %h0, %f0 -> %h0 0xff7f
mov.f32 %f0, 0f7F800000; cvt.rn.satfinite.f16x2.f32 %r0, %f0, %f1 -> %r0 0x7bff3e00
mov.b16 %h0, 0xbfc0; mov.b16 %h1, 0x4000; max.xorsign.abs.bf16 %h0, %h0, %h1 -> %h0 0xc000
mov.b16 %h0, 0xbfc0; mov.b16 %h1, 0x7fc0; max.NaN.xorsign.abs.bf16 %h0, %h0, %h1 -> %h0 0x7fff
mov.b32 %r0, {%h1, %h2}; mov.b32 %r1, {%h2, %h1}; min.xorsign.abs.f16x2 %r0, %r0, %r1 -> %r0 0x3c003c00
mov.u32 %r1, 9; cvt.pack.sat.u4.s32.b32 %r0, %r1, %r2, %r3 -> %r0 0x34567890
mov.u32 %r1, 9; cvt.pack.sat.s2.s32.b32 %r0, %r1, %r2, %r3 -> %r0 0x23456786
mov.u32 %r0, 0xff7f80ff; mov.u32 %r1, 0x01ff0502; vadd4.u32.s32.u32.sat %r0, %r0, %r1, %r0 -> %r0 0x00ff0001
mov.u32 %r0, 0xffff0001; mov.u32 %r1, 0x00028000; vmax2.s32.s32.u32 %r0, %r0, %r1, %r0 -> %r0 0x00028000
setp.eq.u32 %p1, %r1, %r1; lop3.and.b32 %r0|%p0, %r1, %r2, %r3, 0xfe, %p1 -> %p0 1
lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0, %p0 -> %p0 0
lop3.or.b32 %r0|%p0, %r1, %r1, %r1, 0xc0, %p0 -> %r0 7
mov.b16 %h0, 0x4040; cvt.rn.f16.bf16 %h0, %h0 -> %h0 0x4200";

/// Those that a GPU runs only in kernels that are built for them, or only once: they stop the context. The result is a message where there is one.
pub(crate) const SIMULATED: [(&str, Result<u64, &str>); 3] = [
    ("setmaxnreg.inc.sync.aligned.u32 64; mov.u32 %r0, %r1", Ok(7)),
    ("trap", Err("CUDA_ERROR_LAUNCH_FAILED")),
    ("brkpt", Err("CUDA_ERROR_LAUNCH_FAILED")),
];

/// The statements of a line, the register and its contents.
pub(crate) fn parts(line: &str) -> (&str, &str, u64) {
    let (statements, result) = line.split_once(" -> ").unwrap();
    let (register, contents) = result.split_once(' ').unwrap();
    let contents = contents
        .strip_prefix("0x")
        .map_or_else(|| contents.parse(), |digits| u64::from_str_radix(digits, 16));
    (statements, register, contents.unwrap())
}

pub(crate) fn module_of(statements: &str, register: &str) -> String {
    let stored = match &register[..2] {
        "%p" => format!("selp.u64 %y0, 1, 0, {register};"),
        "%h" => format!("cvt.u64.u16 %y0, {register};"),
        "%r" => format!("cvt.u64.u32 %y0, {register};"),
        "%f" => format!("mov.b32 %r0, {register}; cvt.u64.u32 %y0, %r0;"),
        _ => format!("mov.b64 %y0, {register};"),
    };
    let target = if statements.contains("setmaxnreg") { "sm_90a" } else { "sm_90" };
    format!(
        ".version 8.4\n.target {target}\n.address_size 64\n.const .align 8 .b16 steady[4] = {{1, -3, 5, 7}};\n\
         .func after() {{ ret; }}\n\
         .func (.param .b32 made) after_it(.param .b32 given) {{ .reg .b32 %r; ld.param.b32 %r, [given]; add.u32 %r, %r, 1; st.param.b32 [made], %r; ret; }}\n\
         .visible .entry k(.param .u64 in, .param .u64 out, .param .u64 results, .param .u32 number) {{\n\
         .reg .pred %p<3>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %y<2>; .reg .f32 %f<4>; .reg .f64 %d<3>;\n\
         .reg .b64 %in; .reg .b64 %out; .reg .b64 %result; .reg .b64 %at; .reg .b32 %me; .reg .b32 %s; .reg .b32 %s5;\n\
         .shared .align 32 .b8 shared[4096]; .local .align 8 .b8 mine[8]; .param .b32 given; .param .b32 made;\n\
         mov.u32 %me, %tid.x; ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; ld.param.u64 %result, [results];\n\
         mul.wide.u32 %at, %me, {BYTES}; add.u64 %in, %in, %at; add.u64 %out, %out, %at; mul.wide.u32 %at, %me, 8; add.u64 %result, %result, %at;\n\
         mov.u32 %s5, shared; mad.lo.u32 %s, %me, 32, %s5; add.u32 %s5, %s5, 160;\n\
         st.shared.v2.u32 [%s], {{0x0a0b0c0d, 0x01020304}}; bar.sync 0;\n\
         mov.u32 %r0, 0; mov.u32 %r1, 7; mov.u32 %r2, -3; mov.u32 %r3, 0x12345678; mov.u64 %y0, 0; mov.u64 %y1, 0x0123456789abcdef;\n\
         mov.b16 %h0, 0; mov.b16 %h1, 0x3c00; mov.b16 %h2, 0x4000; mov.b16 %h3, 0x4200;\n\
         mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f3FC00000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0fC0800000;\n\
         mov.f64 %d0, 0d0000000000000000; mov.f64 %d1, 0d3FE0000000000000; mov.f64 %d2, 0d4000000000000000;\n\
         setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 7; setp.eq.u32 %p2, %r1, 0;\n\
         {statements};\n{stored}\nst.global.u64 [%result], %y0;\nret;\n}}"
    )
}

/// What a thread has at the end, or what the driver says of the launch.
fn result(raw: &Raw, text: &str) -> Result<u64, DriverError> {
    let (text, driver) = (CString::new(text).unwrap(), &raw.driver);
    let (mut module, mut function) = (null_mut(), null_mut());
    let [mut from, mut to, mut results]: [CUdeviceptr; 3] =
        [(); 3].map(|()| raw.alloc(THREADS * BYTES).unwrap());
    let mut number = 12_345_u32;
    let input: Vec<u32> = INPUT.into_iter().cycle().take(THREADS * BYTES / 4).collect();
    let mut output = [0_u64; THREADS];
    // SAFETY: pointers are to locals that outlive the calls, as large as the calls say; kernels stay within the allocations.
    unsafe {
        driver.cuModuleLoadData(&mut module, text.as_ptr().cast())?;
        driver.cuModuleGetFunction(&mut function, module, c"k".as_ptr())?;
        driver.cuMemcpyHtoD_v2(from, input.as_ptr().cast(), THREADS * BYTES)?;
        driver.cuMemsetD8_v2(to, 0, THREADS * BYTES)?;
        let mut parameters = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut results).cast(),
            (&raw mut number).cast(),
        ];
        let (parameters, threads) = (parameters.as_mut_ptr(), THREADS as u32);
        driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, null_mut(), parameters, null_mut())?;
        driver.cuMemcpyDtoH_v2(output.as_mut_ptr().cast(), results, size_of_val(&output))?;
        driver.cuModuleUnload(module)?;
        [from, to, results].into_iter().try_for_each(|address| driver.cuMemFree_v2(address))?;
    }
    Ok(output[THREAD])
}

cases! {
    fn other_instructions(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let mut wrong = Vec::new();
        for line in OTHERS.trim().lines() {
            let (statements, register, expected) = parts(line);
            let found = result(&raw, &module_of(statements, register));
            if found != Ok(expected) {
                wrong.push(format!("{line}: {found:x?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn instructions_that_only_the_simulator_runs() {
    for (statements, expected) in SIMULATED {
        let raw = Raw::new(&gpumem_sim::driver(SimConfig::new()).unwrap()).unwrap();
        match (result(&raw, &module_of(statements, "%r0")), expected) {
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{statements}: {error}"),
            (found, expected) => assert_eq!(found.ok(), expected.ok(), "{statements}"),
        }
    }
}

/// They are right programs, and their checks find nothing.
#[test]
fn the_simulator_finds_nothing_in_them() {
    let driver = gpumem_sim::driver(SimConfig::new().kernel_races(true).uninitialised(true)).unwrap();
    let raw = Raw::new(&driver).unwrap();
    for line in OTHERS.trim().lines() {
        let (statements, register, _) = parts(line);
        result(&raw, &module_of(statements, register)).unwrap();
        let found = Sim::of(&driver).unwrap().take_findings();
        assert!(found.is_empty(), "{line}: {found:#?}");
    }
}
