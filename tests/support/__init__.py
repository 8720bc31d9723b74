# SPDX-License-Identifier: Apache-2.0
"""What tests share: targets and traffic, records and recordings made up, receivers, clients."""
