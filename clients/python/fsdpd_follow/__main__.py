from fsdpd_follow.main import main

main()
