/* Stand-in for libonload_ext.so.1, libefcp.so.1 and libonload_zf.so.1: a soname and one symbol. */
#include "standin.h"

#ifdef STANDIN_ZF
const char zf_version_standin[] = "TCPDirect Library version: " STANDIN_VERSION;
#endif

int STANDIN_SYMBOL(void)
{
	return 0;
}
