//! cubecl's CUDA runtime on whatever answers as libcuda: its client allocates, writes, reads and gives back memory on a device, and runs
//! kernels in cubecl's language, which is what burn does all day. A wrong result ends the program.

mod kernels;

use cubecl_core::Runtime;
use cubecl_cuda::{CudaDevice, CudaRuntime};
use kernels::Client;

type Check = (&'static str, fn(&Client));

const BUFFER_BYTES: usize = 1 << 20;

fn main() {
    let checks: [Check; 4] = [
        ("memory", memory),
        ("a fused kernel", kernels::fused),
        ("a sum in shared memory", kernels::sum),
        ("a maximum by shuffles and an atomic", kernels::largest),
    ];
    for index in 0..2 {
        let client = CudaRuntime::client(&CudaDevice { index });
        for (name, check) in checks {
            check(&client);
            println!("device {index}: {name}: ok");
        }
    }
}

fn memory(client: &Client) {
    let bytes: Vec<u8> = (0..BUFFER_BYTES).map(|index| (index % 251) as u8).collect();
    let handles: Vec<_> = (0..8).map(|_| client.create_from_slice(&bytes)).collect();
    for handle in &handles {
        assert_eq!(&client.read_one(handle.clone()).expect("it can be read")[..], &bytes[..]);
    }

    let empty = client.empty(BUFFER_BYTES);
    assert_eq!(client.read_one(empty.clone()).expect("it can be read").len(), BUFFER_BYTES);
    let used = client.memory_usage().expect("usage is known");
    assert!(used.bytes_in_use >= 9 * BUFFER_BYTES as u64, "{used}");
    assert!(used.bytes_reserved >= used.bytes_in_use, "{used}");

    drop((handles, empty));
    client.memory_cleanup();
    let left = client.memory_usage().expect("usage is known");
    assert!(left.bytes_in_use < BUFFER_BYTES as u64, "{left}");
    assert!(left.bytes_reserved < used.bytes_reserved, "{left}");

    let again = client.create_from_slice(&bytes[..1000]);
    assert_eq!(&client.read_one(again).expect("it can be read")[..], &bytes[..1000]);
}
