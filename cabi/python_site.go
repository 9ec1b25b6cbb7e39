package main

// #include "python_site.h"
import "C"

// pythonSite is where in its Python program the calling thread was when it
// entered this library; "" when it is in none. Go runs calls from C on the
// thread that makes them.
func pythonSite() string { return C.GoString(C.penstock_python_site()) }
