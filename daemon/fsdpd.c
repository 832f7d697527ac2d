/* main of fsdpd. */
int main(void)
{
    return 0;
}
