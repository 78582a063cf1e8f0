/* What discovery reads in a program: its needs. */
const char version[] = VERSION;
const char checksum[] = CHECKSUM;

extern int __libc_start_main(void);
extern unsigned long __isoc23_strtoul(const char *, char **, int);

void _start(void)
{
    __isoc23_strtoul(checksum + (version[0] == 0), 0, 16);
    __libc_start_main();
    for (;;)
        ;
}
