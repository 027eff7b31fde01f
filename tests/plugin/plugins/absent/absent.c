int absent_function(int argc, char **argv);

__attribute__((visibility("default"))) int absent_function(int argc, char **argv)
{
    return argc + (argv != 0);
}
