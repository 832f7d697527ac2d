from fsdpd_sample.main import main

main()
