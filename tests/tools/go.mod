// Programs that the tests run, built by tests/support/go.rs. x/net is newer than h2spec asks for.
module mvproxy.test/tools

go 1.26.0

tool (
	github.com/summerwind/h2spec/cmd/h2spec
	github.com/summerwind/h2spec/cmd/h2specd
)

require golang.org/x/net v0.62.0

require (
	github.com/fatih/color v0.0.0-20161025120501-bf82308e8c85 // indirect
	github.com/inconshreveable/mousetrap v1.0.0 // indirect
	github.com/mattn/go-colorable v0.1.0 // indirect
	github.com/mattn/go-isatty v0.0.4 // indirect
	github.com/spf13/cobra v0.0.0-20170118185516-dc208f4211e7 // indirect
	github.com/spf13/pflag v1.0.3 // indirect
	github.com/summerwind/h2spec v0.0.0-20200804131034-70ac22940108 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
