package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/options"
)

// row is a flag's row of the options table. A flag without one is a mistake in
// this program that the first test to build the command finds.
func row(cmd *cobra.Command, flag string) options.Option {
	o, ok := options.Lookup(tableName(cmd), flag)
	if !ok {
		panic(fmt.Sprintf("%s --%s is not in options.Table", tableName(cmd), flag))
	}
	return o
}

// tableName is what a command is called in the options table: a command below another has both names.
func tableName(cmd *cobra.Command) string {
	if parent := cmd.Annotations[parentKey]; parent != "" {
		return parent + " " + cmd.Name()
	}
	return cmd.Name()
}

// parentKey is set at once, because flags are made before the command has its parent.
const parentKey = "parent"

// textFlag adds a flag whose default and meaning are in the options table.
func textFlag(cmd *cobra.Command, value *string, flag string) {
	o := row(cmd, flag)
	cmd.Flags().StringVar(value, flag, o.Default, o.Doc)
}

// boolFlag is textFlag for a switch.
func boolFlag(cmd *cobra.Command, value *bool, flag string) {
	o := row(cmd, flag)
	cmd.Flags().BoolVar(value, flag, o.Default == "true", o.Doc)
}

// noArguments refuses arguments, and says where they might belong.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: %s takes flags only, see %s --help", args[0], cmd.Name(), cmd.CommandPath())
	}
	return nil
}
