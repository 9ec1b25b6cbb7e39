package main

// #include "python_site.h"
import "C"

// pythonSite is where in its Python program the calling thread is; "" when it is
// in none. Called from the thread that allocates.
func pythonSite() string {
	var buf [512]C.char
	n := C.penstock_python_site(&buf[0], C.size_t(len(buf)))
	return C.GoStringN(&buf[0], C.int(n))
}
