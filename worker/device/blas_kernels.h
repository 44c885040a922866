// The right OpenBLAS kernels for this processor.
//
// OpenBLAS picks its kernels by the processor's model before main. It does not know models newer than itself, and falls
// back to kernels of 2004, with which a matrix product takes three times as long. It accepts a name from the
// environment, but only before it is loaded, so the program restarts itself once with the name set.
#pragma once

namespace causeway::worker {

// Call first in main. Returns if OpenBLAS has chosen well, if its choice is already set, or if the program cannot be
// restarted; otherwise does not return, and main begins anew with the same arguments.
void StartAgainWithBestBlasKernels(char** argv);

}  // namespace causeway::worker
