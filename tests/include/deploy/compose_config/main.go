// Prints a compose file as `docker compose config --format json` does, with Compose's own library and no engine.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithDefaultProfiles(),
		cli.WithResolvedPaths(true))
	if err == nil {
		project, failed := options.LoadProject(context.Background())
		if err = failed; err == nil {
			var text []byte
			if text, err = project.MarshalJSON(); err == nil {
				fmt.Println(string(text))
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
