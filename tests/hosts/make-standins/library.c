/* What discovery reads in a library: its version, its interface checksum, its needs of libc. */
const char product[] = "Onload";
const char version[] = VERSION;
const char checksum[] = CHECKSUM;

extern long write(int, const void *, unsigned long);
extern int YOUNGEST(void);

int onload_is_present(void)
{
    write(2, version, sizeof version);
    return YOUNGEST();
}
