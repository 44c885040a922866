// The right OpenBLAS kernels for this processor.
//
// OpenBLAS picks its kernels by the processor's model before main. It does not know models younger than itself, and
// falls back to those of 2004: on such a processor a matrix product takes three times as long. It takes a name from the
// environment, but only before it is loaded, so the program starts itself once more with the name set.
#pragma once

namespace causeway::worker {

// Call first in main. Returns where OpenBLAS has chosen well, was told what to choose, or the program cannot be started
// again; otherwise does not return, and main begins anew with the same arguments.
void StartAgainWithBestBlasKernels(char** argv);

}  // namespace causeway::worker
